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
from policysched.metric_sources.annotations import AnnotationQueryClient, AnnotationsSettings
from policysched.metric_sources.file import FileSampleSource
from policysched.metric_sources.metrics_api import PATH, MetricsApiQueryClient
from policysched.metric_sources.poll_status import PollError, SourcePollStatus
from policysched.metric_sources.polling import FetchBody, PollingSource
from policysched.metric_sources.prometheus import PrometheusQueryClient
from policysched.metric_sources.prometheus_transport import (
    HttpConnectionPool,
    PrometheusHttpTransport,
    PrometheusSettings,
)
from policysched.metric_sources.router import (
    ConfiguredSource,
    SampleSourceRouter,
    UnsupportedReason,
    unserved_reason,
)
from policysched.metric_sources.source import SampleSource
from policysched.text.sanitize import sanitize_line

log = logging.getLogger(__name__)


def make_sources(
    samples: SamplesSettings,
    file: Path | None,
    transport: Transport,
    *,
    now_ns: Callable[[], int],
    random: Callable[[str], Random],
) -> SampleSourceRouter:
    """`file` is laid over all. Nothing is asked yet. Raises BadSamples where a file of samples cannot be used."""
    pool = HttpConnectionPool(user_agent=f"policysched/{__version__}")
    overlaid = None
    if file is not None:
        book = SourcePollStatus("--metrics")
        overlaid = FileSampleSource(file, book, now_ns=now_ns), book

    def one(name: str, given: SourceSettings) -> ConfiguredSource:
        book, dice = SourcePollStatus(name), random(f"samples {name}")
        source: SampleSource
        match given:
            case FileSettings(path):
                return ConfiguredSource("file", FileSampleSource(path, book, now_ns=now_ns), book)
            case PrometheusSettings():
                if not given.tls.verify:
                    log.warning("TLS is not verified, as the settings say", extra={"source": name})
                asker = PrometheusQueryClient(PrometheusHttpTransport(given, pool), now_ns=now_ns)
                source = PollingSource(asker, book, now_ns=now_ns, random=dice)
                return ConfiguredSource("prometheus", source, book)
            case AnnotationsSettings():
                looker = AnnotationQueryClient(given, now_ns=now_ns)
                source = PollingSource(looker, book, now_ns=now_ns, random=dice)
                return ConfiguredSource("annotations", source, book)
            case MetricsApiSettings(timeout_s):
                lister = MetricsApiQueryClient(_node_metrics_fetcher(transport, timeout_s), now_ns=now_ns)
                source = PollingSource(lister, book, now_ns=now_ns, random=dice)
                return ConfiguredSource("metrics-api", source, book)

    by_name = {name: one(name, given) for name, given in samples.sources.items()}
    return SampleSourceRouter(by_name, samples.default, overlaid, lambda: pool)


def unserved_reason_lookup(settings: Settings) -> UnsupportedReason:
    """The same question without the sources themselves: for whoever only checks policies. What a file has, nobody asks."""

    def says(given: SourceSettings) -> UnsupportedReason:
        match given:
            case AnnotationsSettings():
                return annotations.unsupported_reason
            case MetricsApiSettings():
                return metrics_api.unsupported_reason
            case PrometheusSettings() | FileSettings():
                return lambda _: None

    sources = {name: says(given) for name, given in settings.samples.sources.items()}
    if settings.metrics is not None and not sources:
        return lambda _: None
    return lambda metric: unserved_reason(metric, sources, settings.samples.default)


def _node_metrics_fetcher(transport: Transport, timeout_s: float) -> FetchBody:
    async def fetch() -> bytes:
        try:
            answer = await transport.request(ApiRequest("GET", PATH, timeout_s=timeout_s))
        except TransportError as error:
            raise PollError("unreachable", sanitize_line(str(error))) from None
        if answer.status in (401, 403):
            raise PollError(
                "credentials",
                f"the API server answers {answer.status}: apply deploy/metrics-api.yaml for the right",
            )
        if answer.status == 404:
            raise PollError(
                "status", "the API server answers 404: no metrics API is installed in this cluster"
            )
        if answer.status != 200:
            raise PollError("status", f"the API server answers {answer.status}")
        return answer.body

    return fetch
