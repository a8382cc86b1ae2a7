"""The kinds of metric sources. To add one, see CONTRIBUTING.md, "To add a kind of metric source"."""

from collections.abc import Mapping

from policysched.metric_sources.annotations import AnnotationsSettings
from policysched.metric_sources.file import FileSettings
from policysched.metric_sources.metrics_api import MetricsApiSettings
from policysched.metric_sources.prometheus_transport import PrometheusSettings
from policysched.metric_sources.source_kind import SourceSettings

_KINDS: tuple[type[SourceSettings], ...] = (
    PrometheusSettings,
    AnnotationsSettings,
    MetricsApiSettings,
    FileSettings,
)

SOURCE_KINDS: Mapping[str, type[SourceSettings]] = {settings.kind: settings for settings in _KINDS}
"""By `kind` in the settings."""
