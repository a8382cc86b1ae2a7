"""Samples by instant queries to a Prometheus, or whatever answers its API.

The time of a sample is when the query was sent, by our own clock: so the pods that came after it are known not to be in
it. An instant query answers with the time of evaluation, whatever the age of what it evaluated; `sampled_at`, a second
query, says how old that is, by the server's own clock, so that the two clocks need not agree.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from policysched.lang.ir.declarations import Metric, PairJoinSpec
from policysched.metric_sources.clock_skew import ClockSkewTracker, QuerySkew
from policysched.metric_sources.pod_pairs import PairLabels, PairSeriesJoin, RawPairs
from policysched.metric_sources.polling import QueryResult, process_in_batches
from policysched.metric_sources.prometheus_response import (
    InstantVector,
    parse_response,
    parse_series,
)
from policysched.metric_sources.series_join import NodeJoin, SeriesJoiner
from policysched.metric_sources.source import Nodes, RawSamples
from policysched.model.identifiers import NodeName

_JOINERS_MAX = 16


class PrometheusTransport(Protocol):
    """Carries one query to the server."""

    async def query(self, query: str) -> bytes:
        """The body of an answer with status 200. Raises Unusable."""
        ...


@dataclass(frozen=True, slots=True)
class PrometheusQuery:
    query: str
    sampled_at: str | None
    join: NodeJoin | PairLabels


@dataclass(slots=True)
class _JoinedSeries:
    """Values by node as the series are gone through. `duplicated` nodes have no value: nobody knows which one counts."""

    values: dict[str, float | str] = field(default_factory=dict)
    evaluated_s: float = 0.0
    duplicated: set[str] = field(default_factory=set)
    unmatched: int = 0
    unreadable: int = 0


class PrometheusQueryClient:
    """An `QueryClient`. Answers are parsed whole and joined in slices; the nodes' keys are shared by all its questions."""

    def __init__(self, transport: PrometheusTransport, *, now_ns: Callable[[], int]) -> None:
        self._transport = transport
        self._now_ns = now_ns
        self._joiners: dict[NodeJoin, SeriesJoiner] = {}
        self._clock_skew = ClockSkewTracker()

    def unsupported_reason(self, metric: Metric) -> str | None:  # noqa: ARG002  # it can be asked anything
        return None

    def query_for(self, metric: Metric) -> PrometheusQuery:
        join = metric.join
        labels = PairLabels(join.sender, join.receiver) if isinstance(join, PairJoinSpec) else join
        return PrometheusQuery(metric.query, metric.sampled_at, labels)

    def query_text(self, question: PrometheusQuery) -> str:
        return question.query

    async def fetch(self, question: PrometheusQuery, nodes: Callable[[], Nodes]) -> QueryResult:
        sent_ns = self._now_ns()
        answer = parse_response(await self._transport.query(question.query))
        ages = None
        if question.sampled_at is not None:
            ages = parse_response(await self._transport.query(question.sampled_at))
        if isinstance(question.join, PairLabels):
            return await _join_pairs(answer, question.join, sent_ns)
        joiner = self._joiner(question.join)
        known = nodes()
        joiner.update_nodes(known)
        joined = await _join(answer, joiner)
        values, times_ns = joined.values, dict[str, int]()
        if ages is not None:
            dated = await _join(ages, joiner)
            times_ns = _times_ns(dated, values, self._clock_skew.begin_query(question, known, sent_ns))
            values = {node: value for node, value in values.items() if node in times_ns}
        return QueryResult(
            RawSamples(values, sent_ns, times_ns),
            unmatched=joined.unmatched,
            duplicated=len(joined.duplicated),
            unreadable=joined.unreadable,
            warnings=answer.warnings + (ages.warnings if ages is not None else ()),
        )

    def _joiner(self, join: NodeJoin) -> SeriesJoiner:
        """Those asked for last are kept: one that no policy names any more would hold on to nodes of the past."""
        joiner = self._joiners.pop(join, None) or SeriesJoiner(join)
        self._joiners[join] = joiner
        if len(self._joiners) > _JOINERS_MAX:
            del self._joiners[next(iter(self._joiners))]
        return joiner


async def _join_pairs(answer: InstantVector, labels: PairLabels, sent_ns: int) -> QueryResult:
    joined = PairSeriesJoin(labels)

    def join_some(some: Sequence[object]) -> None:
        for one in some:
            read = parse_series(one)
            if read is None:
                joined.unreadable += 1
            else:
                joined.add_series(read.labels, read.value)

    await process_in_batches(answer.series, join_some)
    return QueryResult(
        RawPairs(joined.values, sent_ns),
        unmatched=joined.unmatched,
        duplicated=joined.duplicated,
        unreadable=joined.unreadable,
        warnings=answer.warnings,
    )


async def _join(vector: InstantVector, joiner: SeriesJoiner) -> _JoinedSeries:
    joined = _JoinedSeries()
    await process_in_batches(vector.series, lambda some: _join_batch(some, joiner, joined))
    return joined


def _join_batch(series: Sequence[object], joiner: SeriesJoiner, joined: _JoinedSeries) -> None:
    values, doubled = joined.values, joined.duplicated
    for one in series:
        read = parse_series(one)
        if read is None:
            joined.unreadable += 1
            continue
        nodes = joiner.nodes_of(read.labels)
        if not nodes:
            joined.unmatched += 1
        joined.evaluated_s = read.evaluated_s
        for node in nodes:
            if node in values or node in doubled:
                values.pop(node, None)
                doubled.add(node)
            else:
                values[node] = read.value


def _times_ns(dated: _JoinedSeries, values: Mapping[str, float | str], sight: QuerySkew) -> dict[str, int]:
    """When each node's sample was true by our clock. A time in the server's future counts as when it was first seen."""
    found: dict[str, int] = {}
    for node, sampled_s in dated.values.items():
        age_s = dated.evaluated_s - float(sampled_s)
        if math.isfinite(age_s):
            claimed_ns = sight.now_ns - int(min(max(-1e9, age_s), 1e9) * 1e9)
            shown = values.get(node, math.nan), float(sampled_s)
            found[node] = max(0, sight.clamp_ns(NodeName(node), shown, claimed_ns))
    return found
