"""Samples for whoever runs policies: the sources at work, and how each metric of the running policies fares.

The scheduler and the extender have one each. A metric that no source serves is named once, in the log and as an event
where whoever edits the policies looks.
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
"""How long a policy waits at the most for its metrics to be asked for once. A source that fails is known sooner, by its own time-out;
this is for one that hangs."""


@dataclass(frozen=True, slots=True)
class MetricStatus:
    """`unserved_reason`: why nobody brings samples at all (None: somebody does). `last_failure`: what the last poll ended with, where
    it was not good."""

    policy: str
    metric: Metric
    source: str | None
    unserved_reason: str | None
    last_good_poll: PollResult | None
    last_failure: PollFailure | None


class Sampler:
    """`wanted_metrics` and `nodes` are asked anew each time."""

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
        """In the order of the policies' names and of the metrics in the text."""
        for policy, metrics in sorted(self.wanted_metrics().items()):
            for name, metric in metrics.items():
                key = policy, name
                book = self._sources.status_of(key)
                yield MetricStatus(
                    policy,
                    metric,
                    self._sources.source_name_for(metric) if book is None else book.source,
                    self._sources.unserved_reason(metric),
                    None if book is None else book.last_good.get(key),
                    None if book is None else book.failures.get(key),
                )

    def polls(self) -> Iterator[tuple[str, str, int]]:
        """(source, how they ended, how many): all polls until now."""
        for book in self._sources.statuses():
            yield from ((book.source, kind, count) for kind, count in book.polls_by_outcome.items())

    async def _report_missing_samples(self) -> None:
        """What has no source, to people; what was asked in vain or will not be asked, to whoever waits for it."""
        said: dict[MetricKey, str] = {}
        in_vain: set[MetricKey] = set()
        while True:
            lacking = unserved_metrics(self.wanted_metrics(), self._sources.unserved_reason)
            for (policy, metric), why in lacking.items():
                if said.get((policy, metric)) == why:
                    continue
                words = f"policy `{policy}`: metric `{metric}` is missing for every node: {why}"
                self._report(ReportPolicyEvent("Warning", "MetricWithoutSource", words))
            said = lacking
            wanted = {(policy, name) for policy, metrics in self.wanted_metrics().items() for name in metrics}
            failed = {key for key in wanted if key in lacking or self._is_failing(key)}
            for policy, metric in sorted(failed - in_vain):
                self._deliver(SamplesFailed(policy, metric))
            in_vain = failed
            await asyncio.sleep(_CHECK_INTERVAL_S)

    def _is_failing(self, key: MetricKey) -> bool:
        book = self._sources.status_of(key)
        return book is not None and key in book.failures
