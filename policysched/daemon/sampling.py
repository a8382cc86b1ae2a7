"""The sources of samples, put together from the settings."""

import logging
from collections.abc import Callable
from pathlib import Path
from random import Random

from policysched import __version__
from policysched.config.settings import Settings
from policysched.config.source_settings import (
    FileSettings,
    MetricsApiSettings,
    SamplesSettings,
    SourceSettings,
)
from policysched.kube.client.transport import ApiRequest, Transport, TransportError
from policysched.metric_sources import annotations, metrics_api
from policysched.metric_sources.annotations import AnnotationsAsker, AnnotationsSettings
from policysched.metric_sources.file import FileSamples
from policysched.metric_sources.metrics_api import PATH, MetricsApiAsker
from policysched.metric_sources.poll_status import Book, Unusable
from policysched.metric_sources.polled import Fetch, PolledSource
from policysched.metric_sources.prometheus import PrometheusAsker
from policysched.metric_sources.prometheus_server import Pool, PrometheusServer, PrometheusSettings
from policysched.metric_sources.source import SampleSource
from policysched.metric_sources.sources import Source, Sources, WhyNot, why_unserved
from policysched.text.sanitize import one_line

log = logging.getLogger(__name__)


def make_sources(
    samples: SamplesSettings,
    file: Path | None,
    transport: Transport,
    *,
    now_ns: Callable[[], int],
    random: Callable[[str], Random],
) -> Sources:
    """`file` is laid over all. Nothing is asked yet. Raises BadSamples where a file of samples cannot be used."""
    pool = Pool(user_agent=f"policysched/{__version__}")
    overlaid = None
    if file is not None:
        book = Book("--metrics")
        overlaid = FileSamples(file, book, now_ns=now_ns), book

    def one(name: str, given: SourceSettings) -> Source:
        book, dice = Book(name), random(f"samples {name}")
        source: SampleSource
        match given:
            case FileSettings(path):
                return Source("file", FileSamples(path, book, now_ns=now_ns), book)
            case PrometheusSettings():
                if not given.tls.verify:
                    log.warning("TLS is not verified, as the settings say", extra={"source": name})
                asker = PrometheusAsker(PrometheusServer(given, pool), now_ns=now_ns)
                source = PolledSource(asker, book, now_ns=now_ns, random=dice)
                return Source("prometheus", source, book)
            case AnnotationsSettings():
                looker = AnnotationsAsker(given, now_ns=now_ns)
                source = PolledSource(looker, book, now_ns=now_ns, random=dice)
                return Source("annotations", source, book)
            case MetricsApiSettings(timeout_s):
                lister = MetricsApiAsker(_node_metrics(transport, timeout_s), now_ns=now_ns)
                source = PolledSource(lister, book, now_ns=now_ns, random=dice)
                return Source("metrics-api", source, book)

    by_name = {name: one(name, given) for name, given in samples.sources.items()}
    return Sources(by_name, samples.default, overlaid, lambda: pool)


def why_unserved_by(settings: Settings) -> WhyNot:
    """The same question without the sources themselves: for whoever only checks policies. What a file has, nobody asks."""

    def says(given: SourceSettings) -> WhyNot:
        match given:
            case AnnotationsSettings():
                return annotations.why_not
            case MetricsApiSettings():
                return metrics_api.why_not
            case PrometheusSettings() | FileSettings():
                return lambda _: None

    sources = {name: says(given) for name, given in settings.samples.sources.items()}
    if settings.metrics is not None and not sources:
        return lambda _: None
    return lambda metric: why_unserved(metric, sources, settings.samples.default)


def _node_metrics(transport: Transport, timeout_s: float) -> Fetch:
    async def fetch() -> bytes:
        try:
            answer = await transport.request(ApiRequest("GET", PATH, timeout_s=timeout_s))
        except TransportError as error:
            raise Unusable("unreachable", one_line(str(error))) from None
        if answer.status in (401, 403):
            raise Unusable(
                "credentials",
                f"the API server answers {answer.status}: apply deploy/metrics-api.yaml for the right",
            )
        if answer.status == 404:
            raise Unusable(
                "status", "the API server answers 404: no metrics API is installed in this cluster"
            )
        if answer.status != 200:
            raise Unusable("status", f"the API server answers {answer.status}")
        return answer.body

    return fetch
