"""Routes each metric to the configured source that it names.

A metric that names no source goes to the only one, or to the default source of the settings. A samples file (`--metrics`)
overrides all sources for the metrics that it has: for trying out a policy, and for emergencies.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from policysched.lang.ir.declarations import Metric
from policysched.metric_sources.file import FileSampleSource
from policysched.metric_sources.poll_status import MetricKey, SourcePollStatus
from policysched.metric_sources.source import DeclaredMetrics, SampleConsumer, SampleSource

UnsupportedReason = Callable[[Metric], str | None]
"""Why no source serves a metric; None if one does."""


@dataclass(frozen=True, slots=True)
class ConfiguredSource:
    """One source of the settings, with its `kind` there."""

    kind: str
    source: SampleSource
    status: SourcePollStatus


@dataclass(frozen=True, slots=True)
class SampleSourceRouter:
    """`override` takes precedence for its metrics. `pool` is open while the sources run."""

    by_name: Mapping[str, ConfiguredSource] = field(default_factory=dict)
    default: str | None = None
    override: tuple[FileSampleSource, SourcePollStatus] | None = None
    pool: Callable[[], AbstractAsyncContextManager[object]] = nullcontext

    def source_name_for(self, metric: Metric) -> str | None:
        """The source of a metric, configured or not; None if it is ambiguous."""
        return source_name_for(metric, self.by_name, self.default)

    def unserved_reason(self, metric: Metric) -> str | None:
        """Why no source serves this metric; None if one does."""
        if self.override is not None and self.override[0].has_metric(metric):
            return None
        reasons = {name: configured.source.unsupported_reason for name, configured in self.by_name.items()}
        return unserved_reason(metric, reasons, self.default)

    async def run(self, consumer: SampleConsumer) -> None:
        """Until cancelled."""
        async with self.pool(), asyncio.TaskGroup() as group:
            if self.override is not None:
                file = self.override[0]
                group.create_task(file.run(_filtered_consumer(consumer, file.has_metric)))
            for name, configured in self.by_name.items():
                group.create_task(configured.source.run(_filtered_consumer(consumer, self._routed_to(name))))
            await asyncio.get_running_loop().create_future()

    def _routed_to(self, name: str) -> Callable[[Metric], bool]:
        def is_routed_here(metric: Metric) -> bool:
            overridden = self.override is not None and self.override[0].has_metric(metric)
            return not overridden and self.source_name_for(metric) == name

        return is_routed_here

    def statuses(self) -> Iterator[SourcePollStatus]:
        if self.override is not None:
            yield self.override[1]
        yield from (configured.status for configured in self.by_name.values())

    def status_of(self, key: MetricKey) -> SourcePollStatus | None:
        """The status of the source that polls this metric of this policy."""
        statuses = self.statuses()
        return next(
            (status for status in statuses if key in status.last_good or key in status.failures), None
        )


def source_name_for(metric: Metric, names: Collection[str], default: str | None) -> str | None:
    if metric.source is not None:
        return metric.source
    return next(iter(names)) if len(names) == 1 else default


def unserved_reason(
    metric: Metric, sources: Mapping[str, UnsupportedReason], default: str | None
) -> str | None:
    """`sources` by name: why each does not support a metric."""
    name = source_name_for(metric, sources, default)
    if name is None:
        if not sources:
            return "the settings have no metric source"
        return f"it names no source and the settings have several: {', '.join(sorted(sources))}"
    unsupported_reason = sources.get(name)
    if unsupported_reason is None:
        return f"the settings have no source `{name}`"
    reason = unsupported_reason(metric)
    return None if reason is None else f"source `{name}`: {reason}"


def unserved_metrics(declared: DeclaredMetrics, reason_of: UnsupportedReason) -> dict[MetricKey, str]:
    """The metrics that no source serves, and why."""
    return {
        (policy, name): reason
        for policy, metrics in sorted(declared.items())
        for name, metric in sorted(metrics.items())
        if (reason := reason_of(metric)) is not None
    }


def _filtered_consumer(consumer: SampleConsumer, accepts: Callable[[Metric], bool]) -> SampleConsumer:
    def declared_metrics() -> DeclaredMetrics:
        return {
            policy: {name: metric for name, metric in metrics.items() if accepts(metric)}
            for policy, metrics in consumer.declared_metrics().items()
        }

    return SampleConsumer(declared_metrics, consumer.nodes, consumer.deliver)
