"""Samples for whoever runs policies: the sources at work, and how each metric of the running policies fares.

The scheduler and the extender have one each. A metric that no source serves is named once, in the log and as an event
where whoever edits the policies looks.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from policysched.lang.program import Metric, Program
from policysched.samples.book import Key, Poll, Trouble
from policysched.samples.source import Customer, Nodes, Wanted
from policysched.samples.sources import Sources, unserved
from policysched.schedule.commands import ReportPolicies
from policysched.schedule.events import SamplesArrived

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0


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
    """`programs` and `nodes` are asked anew each time."""

    def __init__(
        self,
        sources: Sources,
        *,
        programs: Callable[[], Mapping[str, Program]],
        nodes: Callable[[], Nodes],
        deliver: Callable[[SamplesArrived], None],
        report: Callable[[ReportPolicies], None],
    ) -> None:
        self._sources = sources
        self._programs = programs
        self._nodes = nodes
        self._deliver = deliver
        self._report = report

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._name_what_has_no_source())
            group.create_task(self._sources.run(Customer(self.wanted, self._nodes, self._deliver)))

    def wanted(self) -> Wanted:
        """The metrics that running policies declare."""
        return {name: program.metrics for name, program in self._programs().items() if program.metrics}

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

    async def _name_what_has_no_source(self) -> None:
        said: dict[Key, str] = {}
        while True:
            lacking = unserved(self.wanted(), self._sources.why_not)
            for (policy, metric), why in lacking.items():
                if said.get((policy, metric)) == why:
                    continue
                words = f"policy `{policy}`: metric `{metric}` is missing for every node: {why}"
                self._report(ReportPolicies("Warning", "MetricWithoutSource", words))
            said = lacking
            await asyncio.sleep(_LOOK_EVERY_S)
