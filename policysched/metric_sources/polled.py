"""A source that is asked again and again: each question in a task of its own, once for all policies that ask the same.

    new question ──► asked ──ok──► waits `every`, a little less by chance ──► asked ...
                       └──in vain──► waits `every`, doubled with each failure up to a minute ──► asked ...

What is asked is the `Asker`'s business. The time between two polls is drawn a little below `every`, so that the questions
of one start do not come in one burst for ever. Thousands of values are converted in slices, between which the loop
decides.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Generic, Protocol, TypeVar

from policysched.cluster.samples import MetricSamples, Sample
from policysched.lang.ir.program import Metric
from policysched.metric_sources.pairs import MutablePairs, RawPairs, convert_pairs, unusable_pairs
from policysched.metric_sources.poll_status import Book, Key, Poll, Unusable
from policysched.metric_sources.source import Customer, Nodes, RawSamples, convert
from policysched.model.objects import NodeName
from policysched.scheduler.events import SamplesArrived

LOOK_EVERY_S = 1.0
"""How often it is looked for questions that came or went."""

FIRST_WITHIN_S = 1.0
LONGEST_WAIT_S = 60.0
SLICE = 500
"""Values a step: under a millisecond."""

Question = TypeVar("Question", bound=Hashable)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Measured:
    """An answer, joined to the nodes or to pairs of pods."""

    raw: RawSamples | RawPairs
    unmatched: int = 0
    doubled: int = 0
    unreadable: int = 0
    warnings: tuple[str, ...] = ()


class Asker(Protocol[Question]):
    """Knows what a metric asks, and how to ask it."""

    def why_not(self, metric: Metric) -> str | None: ...

    def question(self, metric: Metric) -> Question:
        """Metrics with equal questions share the answers."""
        ...

    def words(self, question: Question) -> str:
        """The question for the log."""
        ...

    async def ask(self, question: Question, nodes: Callable[[], Nodes]) -> Measured:
        """Raises Unusable."""
        ...


@dataclass(slots=True)
class _Asked(Generic[Question]):
    """One question. `every_s` is the shortest of those who ask."""

    question: Question
    askers: dict[Key, Metric] = field(default_factory=dict)
    every_s: float = 0.0
    last: Measured | None = None
    due_s: float = 0.0
    failures: int = 0
    task: "asyncio.Task[None] | None" = None


class PolledSource(Generic[Question]):
    """A `SampleSource`."""

    def __init__(
        self,
        asker: Asker[Question],
        book: Book,
        *,
        now_ns: Callable[[], int],
        random: Random,
    ) -> None:
        self._asker = asker
        self._book = book
        self._now_ns = now_ns
        self._random = random
        self._asked: dict[Question, _Asked[Question]] = {}

    def why_not(self, metric: Metric) -> str | None:
        return self._asker.why_not(metric)

    async def run(self, customer: Customer) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                self._follow(customer, group)
                await asyncio.sleep(LOOK_EVERY_S)

    # ── who asks what ──────────────────────────────────────────────────────────────────────────────────────────────

    def _follow(self, customer: Customer, group: asyncio.TaskGroup) -> None:
        """Start the questions that are new, end those that nobody asks any more."""
        wanted: dict[Question, dict[Key, Metric]] = {}
        for policy, metrics in customer.wanted().items():
            for name, metric in metrics.items():
                if self._asker.why_not(metric) is None:
                    wanted.setdefault(self._asker.question(metric), {})[policy, name] = metric
        for question in [one for one in self._asked if one not in wanted]:
            self._end(self._asked.pop(question))
        for question, askers in wanted.items():
            asked = self._asked.get(question)
            if asked is None:
                first_s = self._random.uniform(0, FIRST_WITHIN_S)
                asked = self._asked[question] = _Asked(question, due_s=_loop_s() + first_s)
            self._take_askers(asked, askers, customer, group)

    def _take_askers(
        self, asked: _Asked[Question], askers: dict[Key, Metric], customer: Customer, group: asyncio.TaskGroup
    ) -> None:
        for gone in asked.askers.keys() - askers.keys():
            self._book.forget(gone)
        new = {key: metric for key, metric in askers.items() if asked.askers.get(key) != metric}
        asked.askers = askers
        every_s = min(metric.every_ns for metric in askers.values()) / 1e9
        if every_s != asked.every_s or asked.task is None:
            asked.every_s = every_s
            asked.due_s = min(asked.due_s, _loop_s() + every_s)
            if asked.task is not None:
                asked.task.cancel()
            asked.task = group.create_task(self._ask_on(asked, customer), name=f"samples {self._book.source}")
        elif new and asked.last is not None:
            group.create_task(self._deliver(asked.last, new, customer))

    def _end(self, asked: _Asked[Question]) -> None:
        if asked.task is not None:
            asked.task.cancel()
        for key in asked.askers:
            self._book.forget(key)
        self._book.forget_question(asked.question)

    # ── one question ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _ask_on(self, asked: _Asked[Question], customer: Customer) -> None:
        if asked.last is not None:  # begun anew, for the period is another or somebody joined
            await self._deliver(asked.last, asked.askers, customer)
        while True:
            await asyncio.sleep(max(0.0, asked.due_s - _loop_s()))
            began_s = _loop_s()
            await self._ask_once(asked, customer)
            asked.due_s = max(_loop_s(), began_s + self._wait_s(asked))

    async def _ask_once(self, asked: _Asked[Question], customer: Customer) -> None:
        question, book = asked.question, self._book
        try:
            measured = await self._asker.ask(question, customer.nodes)
        except Unusable as error:
            asked.failures += 1
            book.asked_in_vain(question, self._asker.words(question), error)
            for key in asked.askers:
                book.not_delivered(key, error, self._now_ns())
            return
        asked.failures = 0
        asked.last = measured
        book.asked_well(question, self._asker.words(question), measured.warnings)
        await self._deliver(measured, asked.askers, customer)

    def _wait_s(self, asked: _Asked[Question]) -> float:
        longest_s = max(asked.every_s, LONGEST_WAIT_S)
        wait_s = min(longest_s, asked.every_s * 2.0 ** min(max(0, asked.failures - 1), 30))
        return wait_s * self._random.uniform(0.9, 1.0)

    async def _deliver(self, measured: Measured, askers: dict[Key, Metric], customer: Customer) -> None:
        """To each in its own type and unit; what two have in common is converted once."""
        made: dict[Hashable, MetricSamples] = {}
        raw = measured.raw
        for (policy, name), metric in list(askers.items()):
            form = metric.type, metric.unit
            samples = made.get(form)
            if samples is None:
                samples = made[form] = await _converted(metric, raw)
            # Policies may have changed in between: what is in this unit is not for a metric of another.
            if customer.wanted().get(policy, {}).get(name) != metric:
                continue
            invalid = measured.unreadable
            if isinstance(raw, RawSamples):
                usable = len(samples.values)
                invalid += len(raw.values) - usable
            else:
                usable = len(samples.pairs)
                invalid += unusable_pairs(raw, samples)
            poll = Poll(raw.at_ns, usable, measured.unmatched, measured.doubled, invalid, measured.warnings)
            self._book.delivered((policy, name), poll)
            customer.deliver(SamplesArrived(policy, name, samples))


async def _converted(metric: Metric, raw: RawSamples | RawPairs) -> MetricSamples:
    if isinstance(raw, RawPairs):
        pairs: MutablePairs = {}
        await in_slices(raw.values.items(), lambda some: convert_pairs(metric, some, pairs))
        return MetricSamples({}, polled_ns=raw.at_ns, pairs=pairs)
    found: dict[NodeName, Sample] = {}
    await in_slices(raw.values.items(), lambda some: convert(metric, raw, some, found))
    return MetricSamples(found, polled_ns=raw.at_ns)


async def in_slices(items: Iterable[Item], work: Callable[[list[Item]], object]) -> None:
    """`work` on a few at a time; what else the loop has to do comes in between. The items must not change meanwhile."""
    iterator = iter(items)
    while some := list(islice(iterator, SLICE)):
        work(some)
        await asyncio.sleep(0)


def _loop_s() -> float:
    return asyncio.get_running_loop().time()


Fetch = Callable[[], Awaitable[bytes]]
"""Brings a whole answer. Raises Unusable."""
