"""Samples for whoever runs policies: the sources at work, and how each metric of the running policies fares.

The scheduler and the extender have one each. A metric that no source serves is named once, in the log and as an event
where whoever edits the policies looks.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from policysched.lang.ir.program import Metric
from policysched.metric_sources.poll_status import Key, Poll, Trouble
from policysched.metric_sources.source import Customer, Nodes, Wanted
from policysched.metric_sources.sources import Sources, unserved
from policysched.scheduler.commands import ReportPolicies
from policysched.scheduler.events import SamplesArrived, SamplesFailed

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0

FIRST_SAMPLES_S = 10.0
"""How long a policy waits at the most for its metrics to be asked for once. A source that fails is known sooner, by its own time-out;
this is for one that hangs."""


@dataclass(frozen=True, slots=True)
class MetricStatus:
    """`unserved`: why nobody brings samples at all (None: somebody does). `trouble`: what the last poll ended with, where
    it was not good."""

    policy: str
    metric: Metric
    source: str | None
    unserved: str | None
    good: Poll | None
    trouble: Trouble | None


class Sampler:
    """`wanted` and `nodes` are asked anew each time."""

    def __init__(
        self,
        sources: Sources,
        *,
        wanted: Callable[[], Wanted],
        nodes: Callable[[], Nodes],
        deliver: Callable[[SamplesArrived | SamplesFailed], None],
        report: Callable[[ReportPolicies], None],
    ) -> None:
        self._sources = sources
        self.wanted = wanted
        self._nodes = nodes
        self._deliver = deliver
        self._report = report

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._say_what_comes_not())
            group.create_task(self._sources.run(Customer(self.wanted, self._nodes, self._deliver)))

    def statuses(self) -> Iterator[MetricStatus]:
        """In the order of the policies' names and of the metrics in the text."""
        for policy, metrics in sorted(self.wanted().items()):
            for name, metric in metrics.items():
                key = policy, name
                book = self._sources.book_of(key)
                yield MetricStatus(
                    policy,
                    metric,
                    self._sources.name_for(metric) if book is None else book.source,
                    self._sources.why_not(metric),
                    None if book is None else book.good.get(key),
                    None if book is None else book.trouble.get(key),
                )

    def polls(self) -> Iterator[tuple[str, str, int]]:
        """(source, how they ended, how many): all polls until now."""
        for book in self._sources.books():
            yield from ((book.source, kind, count) for kind, count in book.polls.items())

    async def _say_what_comes_not(self) -> None:
        """What has no source, to people; what was asked in vain or will not be asked, to whoever waits for it."""
        said: dict[Key, str] = {}
        in_vain: set[Key] = set()
        while True:
            lacking = unserved(self.wanted(), self._sources.why_not)
            for (policy, metric), why in lacking.items():
                if said.get((policy, metric)) == why:
                    continue
                words = f"policy `{policy}`: metric `{metric}` is missing for every node: {why}"
                self._report(ReportPolicies("Warning", "MetricWithoutSource", words))
            said = lacking
            wanted = {(policy, name) for policy, metrics in self.wanted().items() for name in metrics}
            failed = {key for key in wanted if key in lacking or self._in_trouble(key)}
            for policy, metric in sorted(failed - in_vain):
                self._deliver(SamplesFailed(policy, metric))
            in_vain = failed
            await asyncio.sleep(_LOOK_EVERY_S)

    def _in_trouble(self, key: Key) -> bool:
        book = self._sources.book_of(key)
        return book is not None and key in book.trouble
