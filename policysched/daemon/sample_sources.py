"""Creates the metric sources that the settings configure."""

from collections.abc import Callable
from pathlib import Path
from random import Random

from policysched import __version__
from policysched.config.settings import Settings
from policysched.config.source_settings import SamplesSettings
from policysched.kube.client.transport import ApiRequest, Transport, TransportError
from policysched.metric_sources.file import FileSampleSource
from policysched.metric_sources.poll_status import PollError, SourcePollStatus
from policysched.metric_sources.prometheus_transport import HttpConnectionPool
from policysched.metric_sources.router import (
    ConfiguredSource,
    SampleSourceRouter,
    UnsupportedReason,
    unserved_reason,
)
from policysched.metric_sources.source_kind import ApiGet, SourceContext, SourceSettings
from policysched.text.sanitize import sanitize_line


def make_sources(
    samples: SamplesSettings,
    file: Path | None,
    transport: Transport,
    *,
    now_ns: Callable[[], int],
    random: Callable[[str], Random],
) -> SampleSourceRouter:
    """`file` overrides the sources for the metrics that it has. Sends nothing. Raises BadSamplesFile."""
    pool = HttpConnectionPool(user_agent=f"policysched/{__version__}")
    override = None
    if file is not None:
        status = SourcePollStatus("--metrics")
        override = FileSampleSource(file, status, now_ns=now_ns), status

    def create(name: str, settings: SourceSettings) -> ConfiguredSource:
        status = SourcePollStatus(name)
        context = SourceContext(name, status, now_ns, random(f"samples {name}"), pool, _api_get(transport))
        return ConfiguredSource(settings.kind, settings.create(context), status)

    by_name = {name: create(name, settings) for name, settings in samples.sources.items()}
    return SampleSourceRouter(by_name, samples.default, override, lambda: pool)


def unserved_reason_lookup(settings: Settings) -> UnsupportedReason:
    """Why no source serves a metric, decided only from the settings, for checks of policies. Sample files are not read."""
    sources = {name: source.unsupported_reason for name, source in settings.samples.sources.items()}
    if settings.metrics is not None and not sources:
        return lambda _: None
    return lambda metric: unserved_reason(metric, sources, settings.samples.default)


def _api_get(transport: Transport) -> ApiGet:
    async def get(path: str, timeout_s: float) -> tuple[int, bytes]:
        try:
            response = await transport.request(ApiRequest("GET", path, timeout_s=timeout_s))
        except TransportError as error:
            raise PollError("unreachable", sanitize_line(str(error))) from None
        return response.status, response.body

    return get
