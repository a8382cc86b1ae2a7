"""Samples by instant queries to a Prometheus, or whatever answers its API.

The time of a sample is when the query was sent, by our own clock: so the pods that came after it are known not to be in
it. An instant query answers with the time of evaluation, whatever the age of what it evaluated; `sampled_at`, a second
query, says how old that is, by the server's own clock, so that the two clocks need not agree.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from policysched.lang.ir.program import Between, Metric
from policysched.metric_sources.clock_skew import FirstSight, Look
from policysched.metric_sources.pairs import PairJoin, PairLabels, RawPairs
from policysched.metric_sources.polled import Measured, in_slices
from policysched.metric_sources.prometheus_answer import Vector, read_answer, reading
from policysched.metric_sources.series_join import Join, Joiner
from policysched.metric_sources.source import Nodes, RawSamples
from policysched.model.objects import NodeName

_JOINERS_MAX = 16


class Road(Protocol):
    """Carries one query to the server."""

    async def query(self, query: str) -> bytes:
        """The body of an answer with status 200. Raises Unusable."""
        ...


@dataclass(frozen=True, slots=True)
class PrometheusQuestion:
    query: str
    sampled_at: str | None
    join: Join | PairLabels


@dataclass(slots=True)
class _Joined:
    """Values by node as the series are gone through. `doubled` nodes have no value: nobody knows which one counts."""

    values: dict[str, float | str] = field(default_factory=dict)
    evaluated_s: float = 0.0
    doubled: set[str] = field(default_factory=set)
    unmatched: int = 0
    unreadable: int = 0


class PrometheusAsker:
    """An `Asker`. Answers are parsed whole and joined in slices; the nodes' keys are shared by all its questions."""

    def __init__(self, road: Road, *, now_ns: Callable[[], int]) -> None:
        self._road = road
        self._now_ns = now_ns
        self._joiners: dict[Join, Joiner] = {}
        self._first_sight = FirstSight()

    def why_not(self, metric: Metric) -> str | None:  # noqa: ARG002  # it can be asked anything
        return None

    def question(self, metric: Metric) -> PrometheusQuestion:
        join = metric.join
        labels = PairLabels(join.sender, join.receiver) if isinstance(join, Between) else join
        return PrometheusQuestion(metric.query, metric.sampled_at, labels)

    def words(self, question: PrometheusQuestion) -> str:
        return question.query

    async def ask(self, question: PrometheusQuestion, nodes: Callable[[], Nodes]) -> Measured:
        sent_ns = self._now_ns()
        answer = read_answer(await self._road.query(question.query))
        ages = None
        if question.sampled_at is not None:
            ages = read_answer(await self._road.query(question.sampled_at))
        if isinstance(question.join, PairLabels):
            return await _of_pairs(answer, question.join, sent_ns)
        joiner = self._joiner(question.join)
        known = nodes()
        joiner.follow(known)
        joined = await _join(answer, joiner)
        values, times_ns = joined.values, dict[str, int]()
        if ages is not None:
            dated = await _join(ages, joiner)
            times_ns = _times_ns(dated, values, self._first_sight.look(question, known, sent_ns))
            values = {node: value for node, value in values.items() if node in times_ns}
        return Measured(
            RawSamples(values, sent_ns, times_ns),
            unmatched=joined.unmatched,
            doubled=len(joined.doubled),
            unreadable=joined.unreadable,
            warnings=answer.warnings + (ages.warnings if ages is not None else ()),
        )

    def _joiner(self, join: Join) -> Joiner:
        """Those asked for last are kept: one that no policy names any more would hold on to nodes of the past."""
        joiner = self._joiners.pop(join, None) or Joiner(join)
        self._joiners[join] = joiner
        if len(self._joiners) > _JOINERS_MAX:
            del self._joiners[next(iter(self._joiners))]
        return joiner


async def _of_pairs(answer: Vector, labels: PairLabels, sent_ns: int) -> Measured:
    joined = PairJoin(labels)

    def join_some(some: Sequence[object]) -> None:
        for one in some:
            read = reading(one)
            if read is None:
                joined.unreadable += 1
            else:
                joined.take(read.labels, read.value)

    await in_slices(answer.series, join_some)
    return Measured(
        RawPairs(joined.values, sent_ns),
        unmatched=joined.unmatched,
        doubled=joined.doubled,
        unreadable=joined.unreadable,
        warnings=answer.warnings,
    )


async def _join(vector: Vector, joiner: Joiner) -> _Joined:
    joined = _Joined()
    await in_slices(vector.series, lambda some: _join_some(some, joiner, joined))
    return joined


def _join_some(series: Sequence[object], joiner: Joiner, joined: _Joined) -> None:
    values, doubled = joined.values, joined.doubled
    for one in series:
        read = reading(one)
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


def _times_ns(dated: _Joined, values: Mapping[str, float | str], sight: Look) -> dict[str, int]:
    """When each node's sample was true by our clock. A time in the server's future counts as when it was first seen."""
    found: dict[str, int] = {}
    for node, sampled_s in dated.values.items():
        age_s = dated.evaluated_s - float(sampled_s)
        if math.isfinite(age_s):
            claimed_ns = sight.now_ns - int(min(max(-1e9, age_s), 1e9) * 1e9)
            shown = values.get(node, math.nan), float(sampled_s)
            found[node] = max(0, sight.at_ns(NodeName(node), shown, claimed_ns))
    return found
