"""A source that is asked again and again: each question in a task of its own, once for all policies that ask the same.

    new question ──► asked ──ok──► waits `every`, a little less by chance ──► asked ...
                       └──in vain──► waits `every`, doubled with each failure up to a minute ──► asked ...

What is asked is the `QueryClient`'s business. The time between two polls is drawn a little below `every`, so that the questions
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
from policysched.lang.ir.declarations import Metric
from policysched.metric_sources.pod_pairs import (
    MutablePodPairs,
    RawPairs,
    convert_pairs,
    count_unusable_pairs,
)
from policysched.metric_sources.poll_status import MetricKey, PollError, PollResult, SourcePollStatus
from policysched.metric_sources.source import Nodes, RawSamples, SampleConsumer, convert_into
from policysched.model.identifiers import NodeName
from policysched.scheduler.events import SamplesArrived

SYNC_INTERVAL_S = 1.0
"""How often it is looked for questions that came or went."""

FIRST_POLL_DELAY_MAX_S = 1.0
RETRY_MAX_S = 60.0
BATCH_SIZE = 500
"""Values a step: under a millisecond."""

Query = TypeVar("Query", bound=Hashable)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class QueryResult:
    """An answer, joined to the nodes or to pairs of pods."""

    raw: RawSamples | RawPairs
    unmatched: int = 0
    duplicated: int = 0
    unreadable: int = 0
    warnings: tuple[str, ...] = ()


class QueryClient(Protocol[Query]):
    """Knows what a metric asks, and how to ask it."""

    def unsupported_reason(self, metric: Metric) -> str | None: ...

    def query_for(self, metric: Metric) -> Query:
        """Metrics with equal questions share the answers."""
        ...

    def query_text(self, question: Query) -> str:
        """The question for the log."""
        ...

    async def fetch(self, question: Query, nodes: Callable[[], Nodes]) -> QueryResult:
        """Raises Unusable."""
        ...


@dataclass(slots=True)
class _ActiveQuery(Generic[Query]):
    """One question. `every_s` is the shortest of those who ask."""

    query: Query
    subscribers: dict[MetricKey, Metric] = field(default_factory=dict)
    every_s: float = 0.0
    last_result: QueryResult | None = None
    due_s: float = 0.0
    failures: int = 0
    task: "asyncio.Task[None] | None" = None


class PollingSource(Generic[Query]):
    """A `SampleSource`."""

    def __init__(
        self,
        client: QueryClient[Query],
        status: SourcePollStatus,
        *,
        now_ns: Callable[[], int],
        random: Random,
    ) -> None:
        self._client = client
        self._status = status
        self._now_ns = now_ns
        self._random = random
        self._queries: dict[Query, _ActiveQuery[Query]] = {}

    def unsupported_reason(self, metric: Metric) -> str | None:
        return self._client.unsupported_reason(metric)

    async def run(self, consumer: SampleConsumer) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                self._sync_queries(consumer, group)
                await asyncio.sleep(SYNC_INTERVAL_S)

    # ── who asks what ──────────────────────────────────────────────────────────────────────────────────────────────

    def _sync_queries(self, customer: SampleConsumer, group: asyncio.TaskGroup) -> None:
        """Start the questions that are new, end those that nobody asks any more."""
        wanted: dict[Query, dict[MetricKey, Metric]] = {}
        for policy, metrics in customer.declared_metrics().items():
            for name, metric in metrics.items():
                if self._client.unsupported_reason(metric) is None:
                    wanted.setdefault(self._client.query_for(metric), {})[policy, name] = metric
        for question in [one for one in self._queries if one not in wanted]:
            self._stop_query(self._queries.pop(question))
        for question, askers in wanted.items():
            asked = self._queries.get(question)
            if asked is None:
                first_s = self._random.uniform(0, FIRST_POLL_DELAY_MAX_S)
                asked = self._queries[question] = _ActiveQuery(question, due_s=_loop_s() + first_s)
            self._set_subscribers(asked, askers, customer, group)

    def _set_subscribers(
        self,
        asked: _ActiveQuery[Query],
        askers: dict[MetricKey, Metric],
        customer: SampleConsumer,
        group: asyncio.TaskGroup,
    ) -> None:
        for gone in asked.subscribers.keys() - askers.keys():
            self._status.forget_metric(gone)
        new = {key: metric for key, metric in askers.items() if asked.subscribers.get(key) != metric}
        asked.subscribers = askers
        every_s = min(metric.poll_interval_ns for metric in askers.values()) / 1e9
        if every_s != asked.every_s or asked.task is None:
            asked.every_s = every_s
            asked.due_s = min(asked.due_s, _loop_s() + every_s)
            if asked.task is not None:
                asked.task.cancel()
            asked.task = group.create_task(
                self._poll_forever(asked, customer), name=f"samples {self._status.source}"
            )
        elif new and asked.last_result is not None:
            group.create_task(self._deliver(asked.last_result, new, customer))

    def _stop_query(self, asked: _ActiveQuery[Query]) -> None:
        if asked.task is not None:
            asked.task.cancel()
        for key in asked.subscribers:
            self._status.forget_metric(key)
        self._status.forget_query(asked.query)

    # ── one question ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _poll_forever(self, asked: _ActiveQuery[Query], customer: SampleConsumer) -> None:
        if asked.last_result is not None:  # begun anew, for the period is another or somebody joined
            await self._deliver(asked.last_result, asked.subscribers, customer)
        while True:
            await asyncio.sleep(max(0.0, asked.due_s - _loop_s()))
            began_s = _loop_s()
            await self._poll_once(asked, customer)
            asked.due_s = max(_loop_s(), began_s + self._wait_s(asked))

    async def _poll_once(self, asked: _ActiveQuery[Query], customer: SampleConsumer) -> None:
        question, book = asked.query, self._status
        try:
            measured = await self._client.fetch(question, customer.nodes)
        except PollError as error:
            asked.failures += 1
            book.record_poll_failure(question, self._client.query_text(question), error)
            for key in asked.subscribers:
                book.record_delivery_failure(key, error, self._now_ns())
            return
        asked.failures = 0
        asked.last_result = measured
        book.record_poll_success(question, self._client.query_text(question), measured.warnings)
        await self._deliver(measured, asked.subscribers, customer)

    def _wait_s(self, asked: _ActiveQuery[Query]) -> float:
        longest_s = max(asked.every_s, RETRY_MAX_S)
        wait_s = min(longest_s, asked.every_s * 2.0 ** min(max(0, asked.failures - 1), 30))
        return wait_s * self._random.uniform(0.9, 1.0)

    async def _deliver(
        self, measured: QueryResult, askers: dict[MetricKey, Metric], customer: SampleConsumer
    ) -> None:
        """To each in its own type and unit; what two have in common is converted once."""
        made: dict[Hashable, MetricSamples] = {}
        raw = measured.raw
        for (policy, name), metric in list(askers.items()):
            form = metric.type, metric.unit
            samples = made.get(form)
            if samples is None:
                samples = made[form] = await _convert_samples(metric, raw)
            # Policies may have changed in between: what is in this unit is not for a metric of another.
            if customer.declared_metrics().get(policy, {}).get(name) != metric:
                continue
            invalid = measured.unreadable
            if isinstance(raw, RawSamples):
                usable = len(samples.values)
                invalid += len(raw.values) - usable
            else:
                usable = len(samples.pairs)
                invalid += count_unusable_pairs(raw, samples)
            poll = PollResult(
                raw.polled_ns, usable, measured.unmatched, measured.duplicated, invalid, measured.warnings
            )
            self._status.record_delivery((policy, name), poll)
            customer.deliver(SamplesArrived(policy, name, samples))


async def _convert_samples(metric: Metric, raw: RawSamples | RawPairs) -> MetricSamples:
    if isinstance(raw, RawPairs):
        pairs: MutablePodPairs = {}
        await process_in_batches(raw.values.items(), lambda some: convert_pairs(metric, some, pairs))
        return MetricSamples({}, polled_ns=raw.polled_ns, pairs=pairs)
    found: dict[NodeName, Sample] = {}
    await process_in_batches(raw.values.items(), lambda some: convert_into(metric, raw, some, found))
    return MetricSamples(found, polled_ns=raw.polled_ns)


async def process_in_batches(items: Iterable[Item], work: Callable[[list[Item]], object]) -> None:
    """`work` on a few at a time; what else the loop has to do comes in between. The items must not change meanwhile."""
    iterator = iter(items)
    while some := list(islice(iterator, BATCH_SIZE)):
        work(some)
        await asyncio.sleep(0)


def _loop_s() -> float:
    return asyncio.get_running_loop().time()


FetchBody = Callable[[], Awaitable[bytes]]
"""Brings a whole answer. Raises Unusable."""
