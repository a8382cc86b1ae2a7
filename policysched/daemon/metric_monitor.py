"""Runs the metric sources, and monitors the metrics of the active policies: poll status, and metrics without a source.

The sources deliver `SamplesArrived` themselves; the scheduler handles it in `scheduler.sample_events`. A metric that no
source serves is reported once, in the log and as an event on the ConfigMap of the policies. The scheduler and the
extender have one monitor each.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from policysched.lang.ir.declarations import Metric
from policysched.metric_sources.poll_status import MetricKey, PollFailure, PollResult
from policysched.metric_sources.router import SampleSourceRouter, unserved_metrics
from policysched.metric_sources.source import DeclaredMetrics, Nodes, SampleConsumer
from policysched.scheduler.commands import ReportPolicyEvent
from policysched.scheduler.events import SamplesArrived, SamplesFailed

log = logging.getLogger(__name__)

_CHECK_INTERVAL_S = 1.0

FIRST_SAMPLES_TIMEOUT_S = 10.0
"""The longest time a policy waits for the first poll of its metrics. A source that fails is known earlier, by its own
timeout; this covers one that hangs."""


@dataclass(frozen=True, slots=True)
class MetricStatus:
    """`unserved_reason`: why no source serves the metric (None: one does). `last_failure`: the error of the last poll, if
    it failed."""

    policy: str
    metric: Metric
    source: str | None
    unserved_reason: str | None
    last_good_poll: PollResult | None
    last_failure: PollFailure | None


class MetricMonitor:
    """`wanted` and `nodes` are called each time their value is needed."""

    def __init__(
        self,
        sources: SampleSourceRouter,
        *,
        wanted: Callable[[], DeclaredMetrics],
        nodes: Callable[[], Nodes],
        deliver: Callable[[SamplesArrived | SamplesFailed], None],
        report: Callable[[ReportPolicyEvent], None],
    ) -> None:
        self._sources = sources
        self.wanted_metrics = wanted
        self._nodes = nodes
        self._deliver = deliver
        self._report = report

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._report_missing_samples())
            group.create_task(
                self._sources.run(SampleConsumer(self.wanted_metrics, self._nodes, self._deliver))
            )

    def statuses(self) -> Iterator[MetricStatus]:
        """Ordered by policy name, then as declared in the text."""
        for policy, metrics in sorted(self.wanted_metrics().items()):
            for name, metric in metrics.items():
                key = policy, name
                status = self._sources.status_of(key)
                yield MetricStatus(
                    policy,
                    metric,
                    self._sources.source_name_for(metric) if status is None else status.source,
                    self._sources.unserved_reason(metric),
                    None if status is None else status.last_good.get(key),
                    None if status is None else status.failures.get(key),
                )

    def polls(self) -> Iterator[tuple[str, str, int]]:
        """(source, outcome, count) of all polls until now."""
        for status in self._sources.statuses():
            yield from ((status.source, kind, count) for kind, count in status.polls_by_outcome.items())

    async def _report_missing_samples(self) -> None:
        """Reports unserved metrics as events, and reports failed and unserved metrics to the core."""
        reported: dict[MetricKey, str] = {}
        delivered: set[MetricKey] = set()
        while True:
            unserved = unserved_metrics(self.wanted_metrics(), self._sources.unserved_reason)
            for (policy, metric), reason in unserved.items():
                if reported.get((policy, metric)) == reason:
                    continue
                message = f"policy `{policy}`: metric `{metric}` has no value on any node: {reason}"
                self._report(ReportPolicyEvent("Warning", "MetricWithoutSource", message))
            reported = unserved
            wanted = {(policy, name) for policy, metrics in self.wanted_metrics().items() for name in metrics}
            failed = {key for key in wanted if key in unserved or self._is_failing(key)}
            for policy, metric in sorted(failed - delivered):
                self._deliver(SamplesFailed(policy, metric))
            delivered = failed
            await asyncio.sleep(_CHECK_INTERVAL_S)

    def _is_failing(self, key: MetricKey) -> bool:
        status = self._sources.status_of(key)
        return status is not None and key in status.failures
