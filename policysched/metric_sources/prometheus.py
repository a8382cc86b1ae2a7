"""Samples from instant queries to Prometheus or a compatible server.

The time of a sample is when the query was sent, on our clock: pods created later are not included in it. An instant
query returns the time of evaluation, whatever the age of the data; `sampled_at`, a second query, returns that age on the
server's clock, so the two clocks need not agree.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from policysched.lang.ir.declarations import Metric, PairJoinSpec
from policysched.metric_sources.clock_skew import ClockSkewTracker, QuerySkew
from policysched.metric_sources.largest_pairs import (
    NAMESPACE_LABEL,
    LargestPairs,
    PrometheusTransport,
    describe_left_out,
)
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

RESPONSE_BYTES_MAX = 16 * 1024 * 1024
_JOINERS_MAX = 16


@dataclass(frozen=True, slots=True)
class PrometheusQuery:
    query: str
    sampled_at: str | None
    join: NodeJoin | PairLabels


@dataclass(slots=True)
class _JoinedSeries:
    """Values by node, accumulated over the series. `duplicated` nodes have two series and therefore no value."""

    values: dict[str, float | str] = field(default_factory=dict)
    evaluated_s: float = 0.0
    duplicated: set[str] = field(default_factory=set)
    unmatched: int = 0
    unreadable: int = 0


class PrometheusQueryClient:
    """A `QueryClient`. Responses are parsed at once and joined in batches; all queries share the keys of the nodes."""

    def __init__(
        self,
        transport: PrometheusTransport,
        *,
        now_ns: Callable[[], int],
        response_bytes_max: int = RESPONSE_BYTES_MAX,
    ) -> None:
        self._transport = transport
        self._largest_pairs = LargestPairs(transport, response_bytes_max)
        self._now_ns = now_ns
        self._joiners: dict[NodeJoin, SeriesJoiner] = {}
        self._clock_skew = ClockSkewTracker()

    def unsupported_reason(self, metric: Metric) -> str | None:  # noqa: ARG002  # a query can ask for anything
        return None

    def query_for(self, metric: Metric) -> PrometheusQuery:
        join = metric.join
        labels = PairLabels(join.sender, join.receiver) if isinstance(join, PairJoinSpec) else join
        return PrometheusQuery(metric.query, metric.sampled_at, labels)

    def query_text(self, query: PrometheusQuery) -> str:
        return query.query

    async def fetch(self, query: PrometheusQuery, nodes: Callable[[], Nodes]) -> QueryResult:
        sent_ns = self._now_ns()
        if isinstance(query.join, PairLabels):
            body, count = await self._largest_pairs.fetch(query.query, query.join.sender[0])
            return await _join_pairs(parse_response(body), query.join, count, sent_ns)
        response = parse_response(await self._transport.query(query.query))
        ages = None
        if query.sampled_at is not None:
            ages = parse_response(await self._transport.query(query.sampled_at))
        joiner = self._joiner(query.join)
        nodes_by_name = nodes()
        joiner.update_nodes(nodes_by_name)
        joined = await _join(response, joiner)
        values, times_ns = joined.values, dict[str, int]()
        if ages is not None:
            dated = await _join(ages, joiner)
            times_ns = _times_ns(dated, values, self._clock_skew.begin_query(query, nodes_by_name, sent_ns))
            values = {node: value for node, value in values.items() if node in times_ns}
        return QueryResult(
            RawSamples(values, sent_ns, times_ns),
            unmatched=joined.unmatched,
            duplicated=len(joined.duplicated),
            unreadable=joined.unreadable,
            warnings=response.warnings + (ages.warnings if ages is not None else ()),
        )

    def _joiner(self, join: NodeJoin) -> SeriesJoiner:
        """An LRU cache: an unused joiner would keep references to deleted nodes."""
        joiner = self._joiners.pop(join, None) or SeriesJoiner(join)
        self._joiners[join] = joiner
        if len(self._joiners) > _JOINERS_MAX:
            del self._joiners[next(iter(self._joiners))]
        return joiner


async def _join_pairs(
    response: InstantVector, labels: PairLabels, count: int | None, sent_ns: int
) -> QueryResult:
    """`count`: of the series of each namespace there are at most so many."""
    joined, of_namespace = PairSeriesJoin(labels), Counter[str]()

    def join_batch(batch: Sequence[object]) -> None:
        for item in batch:
            series = parse_series(item)
            if series is None:
                joined.unreadable += 1
            else:
                joined.add_series(series.labels, series.value)
                of_namespace[str(series.labels.get(NAMESPACE_LABEL, ""))] += 1

    await process_in_batches(response.series, join_batch)
    return QueryResult(
        RawPairs(joined.values, sent_ns),
        unmatched=joined.unmatched,
        duplicated=joined.duplicated,
        unreadable=joined.unreadable,
        warnings=response.warnings + (() if count is None else describe_left_out(of_namespace, count)),
    )


async def _join(vector: InstantVector, joiner: SeriesJoiner) -> _JoinedSeries:
    joined = _JoinedSeries()
    await process_in_batches(vector.series, lambda some: _join_batch(some, joiner, joined))
    return joined


def _join_batch(series: Sequence[object], joiner: SeriesJoiner, joined: _JoinedSeries) -> None:
    values, duplicated = joined.values, joined.duplicated
    for item in series:
        parsed = parse_series(item)
        if parsed is None:
            joined.unreadable += 1
            continue
        nodes = joiner.nodes_of(parsed.labels)
        if not nodes:
            joined.unmatched += 1
        joined.evaluated_s = parsed.evaluated_s
        if duplicated and next(iter(nodes), None) in duplicated:
            continue  # so are the others: a response could have thousands of series of one label that all nodes have
        for node in nodes:
            if node in values or node in duplicated:
                values.pop(node, None)
                duplicated.add(node)
            else:
                values[node] = parsed.value


def _times_ns(dated: _JoinedSeries, values: Mapping[str, float | str], skew: QuerySkew) -> dict[str, int]:
    """The time of each node's sample on our clock. A time in the server's future counts as its first observation."""
    times_ns: dict[str, int] = {}
    for node, sampled_s in dated.values.items():
        age_s = dated.evaluated_s - float(sampled_s)
        if math.isfinite(age_s):
            claimed_ns = skew.now_ns - int(min(max(-1e9, age_s), 1e9) * 1e9)
            sample = values.get(node, math.nan), float(sampled_s)
            times_ns[node] = max(0, skew.clamp_ns(NodeName(node), sample, claimed_ns))
    return times_ns
