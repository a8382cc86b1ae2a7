"""All sources of one process by their names, as the settings give them: each metric goes to the one that it names.

A metric that names none goes to the only one there is, or to the default that the settings give. A file of samples laid
over them all (`--metrics`) comes first for the metrics that it has: for trying a policy, and for the worst night.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from policysched.lang.ir.program import Metric
from policysched.metric_sources.file import FileSampleSource
from policysched.metric_sources.poll_status import MetricKey, SourcePollStatus
from policysched.metric_sources.source import DeclaredMetrics, SampleConsumer, SampleSource

UnsupportedReason = Callable[[Metric], str | None]
"""Why samples of a metric will not come; None where they will."""


@dataclass(frozen=True, slots=True)
class ConfiguredSource:
    """One entry of the settings. `kind` is the settings' word."""

    kind: str
    source: SampleSource
    status: SourcePollStatus


@dataclass(frozen=True, slots=True)
class SampleSourceRouter:
    """`override` is laid over all. `pool` is open while they run."""

    by_name: Mapping[str, ConfiguredSource] = field(default_factory=dict)
    default: str | None = None
    override: tuple[FileSampleSource, SourcePollStatus] | None = None
    pool: Callable[[], AbstractAsyncContextManager[object]] = nullcontext

    def source_name_for(self, metric: Metric) -> str | None:
        """The source that a metric is asked of, known or not; None where nothing decides."""
        return source_name_for(metric, self.by_name, self.default)

    def unserved_reason(self, metric: Metric) -> str | None:
        """Why nobody will bring samples of this metric; None where somebody does."""
        if self.override is not None and self.override[0].has_metric(metric):
            return None
        askers = {name: one.source.unsupported_reason for name, one in self.by_name.items()}
        return unserved_reason(metric, askers, self.default)

    async def run(self, consumer: SampleConsumer) -> None:
        """Until cancelled."""
        async with self.pool(), asyncio.TaskGroup() as group:
            if self.override is not None:
                over = self.override[0]
                group.create_task(over.run(_filtered_consumer(consumer, over.has_metric)))
            for name, one in self.by_name.items():
                group.create_task(one.source.run(_filtered_consumer(consumer, self._routed_to(name))))
            await asyncio.get_running_loop().create_future()

    def _routed_to(self, name: str) -> Callable[[Metric], bool]:
        def goes_there(metric: Metric) -> bool:
            overlaid = self.override is not None and self.override[0].has_metric(metric)
            return not overlaid and self.source_name_for(metric) == name

        return goes_there

    def statuses(self) -> Iterator[SourcePollStatus]:
        if self.override is not None:
            yield self.override[1]
        yield from (one.status for one in self.by_name.values())

    def status_of(self, key: MetricKey) -> SourcePollStatus | None:
        """The book that knows of this metric of this policy."""
        return next((book for book in self.statuses() if key in book.last_good or key in book.failures), None)


def source_name_for(metric: Metric, names: Collection[str], default: str | None) -> str | None:
    if metric.source is not None:
        return metric.source
    return next(iter(names)) if len(names) == 1 else default


def unserved_reason(
    metric: Metric, sources: Mapping[str, UnsupportedReason], default: str | None
) -> str | None:
    """Of sources by name, each as what it says of a metric."""
    name = source_name_for(metric, sources, default)
    if name is None:
        if not sources:
            return "the settings have no metric source"
        return f"it names no source and the settings have several: {', '.join(sorted(sources))}"
    why_not = sources.get(name)
    if why_not is None:
        return f"the settings have no source `{name}`"
    why = why_not(metric)
    return None if why is None else f"source `{name}`: {why}"


def unserved_metrics(wanted: DeclaredMetrics, why_not: UnsupportedReason) -> dict[MetricKey, str]:
    """Why nobody will bring samples, for each metric of which that is so."""
    return {
        (policy, name): why
        for policy, metrics in sorted(wanted.items())
        for name, metric in sorted(metrics.items())
        if (why := why_not(metric)) is not None
    }


def _filtered_consumer(customer: SampleConsumer, which: Callable[[Metric], bool]) -> SampleConsumer:
    def wanted() -> DeclaredMetrics:
        return {
            policy: {name: metric for name, metric in metrics.items() if which(metric)}
            for policy, metrics in customer.declared_metrics().items()
        }

    return SampleConsumer(wanted, customer.nodes, customer.deliver)
