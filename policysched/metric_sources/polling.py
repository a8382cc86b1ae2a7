"""A polled source: one task per query, shared by all policies with the same query.

    new query ──► polled ──ok──► waits `every`, with jitter ──► polled ...
                    └──failed──► waits `every`, doubled with each failure up to a minute ──► polled ...

The `QueryClient` knows the queries. The interval is drawn slightly below `every`, so that queries that start together do
not stay synchronized. Thousands of values are converted in batches, between which the event loop runs.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Generic, Protocol, TypeVar

from policysched.cluster.metric_samples import MetricSamples, Sample
from policysched.lang.ir.declarations import Metric
from policysched.metric_sources.pod_pairs import (
    MutablePodPairs,
    PodPairSet,
    RawPairs,
    convert_pairs,
    find_unusable_pairs,
)
from policysched.metric_sources.poll_status import MetricKey, PollError, PollResult, SourcePollStatus
from policysched.metric_sources.source import Nodes, RawSamples, SampleConsumer, convert_into
from policysched.model.identifiers import NodeName
from policysched.scheduler.events import SamplesArrived
from policysched.text.sanitize import sanitize_line

log = logging.getLogger(__name__)

SYNC_INTERVAL_S = 1.0
"""Interval between checks for new and removed queries."""

FIRST_POLL_DELAY_MAX_S = 1.0
RETRY_MAX_S = 60.0
BATCH_SIZE = 500
"""Values per batch: under a millisecond."""

Query = TypeVar("Query", bound=Hashable)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class QueryResult:
    """A response, joined to nodes or to pairs of pods."""

    raw: RawSamples | RawPairs
    unmatched: int = 0
    duplicated: int = 0
    unreadable: int = 0
    warnings: tuple[str, ...] = ()


class QueryClient(Protocol[Query]):
    """Maps a metric to a query, and sends queries."""

    def unsupported_reason(self, metric: Metric) -> str | None: ...

    def query_for(self, metric: Metric) -> Query:
        """Metrics with equal queries share the responses."""
        ...

    def query_text(self, query: Query) -> str:
        """The query for the log."""
        ...

    async def fetch(self, query: Query, nodes: Callable[[], Nodes]) -> QueryResult:
        """Raises PollError."""
        ...


@dataclass(slots=True)
class _ActiveQuery(Generic[Query]):
    """One query. `every_s` is the shortest interval of its subscribers."""

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

    # ── queries ──────────────────────────────────────────────────────────────────────────────────────────────

    def _sync_queries(self, consumer: SampleConsumer, group: asyncio.TaskGroup) -> None:
        """Start new queries, stop those that no metric needs any more."""
        wanted: dict[Query, dict[MetricKey, Metric]] = {}
        for policy, metrics in consumer.declared_metrics().items():
            for name, metric in metrics.items():
                if self._client.unsupported_reason(metric) is None:
                    wanted.setdefault(self._client.query_for(metric), {})[policy, name] = metric
        for query in [query for query in self._queries if query not in wanted]:
            self._stop_query(self._queries.pop(query))
        for query, subscribers in wanted.items():
            active = self._queries.get(query)
            if active is None:
                first_s = self._random.uniform(0, FIRST_POLL_DELAY_MAX_S)
                active = self._queries[query] = _ActiveQuery(query, due_s=_loop_s() + first_s)
            self._set_subscribers(active, subscribers, consumer, group)

    def _set_subscribers(
        self,
        active: _ActiveQuery[Query],
        subscribers: dict[MetricKey, Metric],
        consumer: SampleConsumer,
        group: asyncio.TaskGroup,
    ) -> None:
        for query in active.subscribers.keys() - subscribers.keys():
            self._status.forget_metric(query)
        new = {key: metric for key, metric in subscribers.items() if active.subscribers.get(key) != metric}
        active.subscribers = subscribers
        every_s = min(metric.poll_interval_ns for metric in subscribers.values()) / 1e9
        if every_s != active.every_s or active.task is None:
            active.every_s = every_s
            active.due_s = min(active.due_s, _loop_s() + every_s)
            if active.task is not None:
                active.task.cancel()
            active.task = group.create_task(
                self._poll_forever(active, consumer), name=f"samples {self._status.source}"
            )
        elif new and active.last_result is not None:
            group.create_task(self._deliver(active.last_result, new, consumer))

    def _stop_query(self, active: _ActiveQuery[Query]) -> None:
        if active.task is not None:
            active.task.cancel()
        for key in active.subscribers:
            self._status.forget_metric(key)
        self._status.forget_query(active.query)

    # ── one query ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _poll_forever(self, active: _ActiveQuery[Query], consumer: SampleConsumer) -> None:
        if active.last_result is not None:  # restarted with another interval or more subscribers
            await self._deliver(active.last_result, active.subscribers, consumer)
        while True:
            await asyncio.sleep(max(0.0, active.due_s - _loop_s()))
            began_s = _loop_s()
            await self._poll_once(active, consumer)
            active.due_s = max(_loop_s(), began_s + self._wait_s(active))

    async def _poll_once(self, active: _ActiveQuery[Query], consumer: SampleConsumer) -> None:
        query, status = active.query, self._status
        try:
            result = await self._client.fetch(query, consumer.nodes)
        except Exception as raised:  # noqa: BLE001  # a value in the answer must not end the process
            error = _as_poll_error(raised)
            active.failures += 1
            status.record_poll_failure(query, self._client.query_text(query), error)
            for key in active.subscribers:
                status.record_delivery_failure(key, error, self._now_ns())
            return
        active.failures = 0
        active.last_result = result
        status.record_poll_success(query, self._client.query_text(query), result.warnings)
        await self._deliver(result, active.subscribers, consumer)

    def _wait_s(self, active: _ActiveQuery[Query]) -> float:
        longest_s = max(active.every_s, RETRY_MAX_S)
        wait_s = min(longest_s, active.every_s * 2.0 ** min(max(0, active.failures - 1), 30))
        return wait_s * self._random.uniform(0.9, 1.0)

    async def _deliver(
        self, result: QueryResult, subscribers: dict[MetricKey, Metric], consumer: SampleConsumer
    ) -> None:
        """Converts to each subscriber's type and unit, once per combination."""
        converted: dict[Hashable, tuple[MetricSamples, int]] = {}
        raw = result.raw
        for (policy, name), metric in list(subscribers.items()):
            unit_key = metric.type, metric.unit
            if unit_key not in converted:
                try:
                    converted[unit_key] = await _convert_samples(metric, raw)
                except Exception as error:  # noqa: BLE001  # the same
                    failure = _as_poll_error(error)
                    self._status.record_delivery_failure((policy, name), failure, self._now_ns())
                    continue
            samples, unusable = converted[unit_key]
            # Policies may have changed meanwhile: the metric may have another unit now.
            if consumer.declared_metrics().get(policy, {}).get(name) != metric:
                continue
            usable = len(samples.values) if isinstance(raw, RawSamples) else len(samples.pairs)
            invalid = result.unreadable + unusable
            poll = PollResult(
                raw.polled_ns, usable, result.unmatched, result.duplicated, invalid, result.warnings
            )
            self._status.record_delivery((policy, name), poll)
            consumer.deliver(SamplesArrived(policy, name, samples))


def _as_poll_error(error: Exception) -> PollError:
    if isinstance(error, PollError):
        return error
    log.error("samples could not be read, please report this bug", exc_info=error)
    return PollError("malformed", sanitize_line(f"internal error: {type(error).__name__}: {error}"))


async def _convert_samples(metric: Metric, raw: RawSamples | RawPairs) -> tuple[MetricSamples, int]:
    """The samples, and how many are unusable."""
    if isinstance(raw, RawPairs):
        pairs: MutablePodPairs = {}
        await process_in_batches(raw.values.items(), lambda some: convert_pairs(metric, some, pairs))
        of_pairs, unusable = MetricSamples({}, polled_ns=raw.polled_ns, pairs=pairs), PodPairSet()
        await process_in_batches(
            raw.values.items(), lambda some: unusable.update(find_unusable_pairs(of_pairs, some))
        )
        return of_pairs, len(unusable)
    samples: dict[NodeName, Sample] = {}
    await process_in_batches(raw.values.items(), lambda some: convert_into(metric, raw, some, samples))
    return MetricSamples(samples, polled_ns=raw.polled_ns), len(raw.values) - len(samples)


async def process_in_batches(items: Iterable[Item], work: Callable[[list[Item]], object]) -> None:
    """Calls `work` with batches; the event loop runs in between. The items must not change meanwhile."""
    iterator = iter(items)
    while some := list(islice(iterator, BATCH_SIZE)):
        work(some)
        await asyncio.sleep(0)


def _loop_s() -> float:
    return asyncio.get_running_loop().time()


FetchBody = Callable[[], Awaitable[bytes]]
"""Fetches a complete response body. Raises PollError."""
