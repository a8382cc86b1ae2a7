"""What is kept of an evaluation, so that the next pod that asks the same pays only for the rows that changed.

A state belongs to one bound set of rules (pods that agree on everything a plan reads share it). It holds for each filter whom it
refuses, for each score what it adds, the sum over the scores, and where in the log of touched rows it stands. Catching
up evaluates the touched rows alone; what normalises over the candidates is done again only if the extremes moved.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from policysched.evaluate.columns.column_kinds import ColumnKind
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.snapshot import World
from policysched.evaluate.columns.view import View
from policysched.evaluate.compile.specialize import Bound
from policysched.evaluate.kernel import Touch
from policysched.evaluate.rules.bound_rules import BoundScore, Measures
from policysched.lang.ir.program import Outage

_MANY = 8  # a share of the rows: if more than one in so many changed, starting over is cheaper
_REFUSED_TOTAL = -1
_FILLINGS_MAX = 4096


class State:
    """Arrays of the columns' capacity, valid for the world that `catch_up` was last given."""

    def __init__(
        self, bound: Bound, outage: Outage | None, world: World, *, among: Array | None = None
    ) -> None:
        """`among`: the rows that are asked about (None: all); the others are refused ahead of all rules. It does not
        follow nodes that come, so such a state is made for one answer."""
        self.bound = bound
        self._among = among
        self._outage = outage
        self._metrics = tuple(dict.fromkeys(name for metrics in bound.rule_metrics() for name in metrics))
        self._local = [place for place, rule in enumerate(bound.scores) if rule.local]
        self._global = [place for place, rule in enumerate(bound.scores) if not rule.local]
        self._whole = [place for place, rule in enumerate(bound.scores) if rule.over_candidates]
        self._by_touch = _ByTouch.of(bound)
        self._filling_kinds: tuple[ColumnKind, ...] | None = None
        self._fillings: dict[Hashable, tuple[Array, Array]] = {}
        self._start_over(world)

    # ── catching up ────────────────────────────────────────────────────────────────────────────────────────────────

    def catch_up(self, world: World) -> None:
        """Bring every array to the state of the world."""
        columns = world.columns
        touched = columns.touched_since(self._position)
        overlay_rows = [] if world.overlay is None else world.overlay.log[self._overlay_position :]
        if (
            touched is None
            or len(self.feasible) != columns.capacity
            or _MANY * (len(touched[0]) + len(touched[1])) > columns.size
        ):
            self._start_over(world)
            return
        changed, used = touched
        used |= set(overlay_rows) - changed
        self._note(world)
        self._answer_stale_rules(world)
        if changed:
            self._update(changed, world, range(len(self._refused)), range(len(self.bound.scores)))
        if len(used) == 1:
            self._update_used_row(used, world)
        elif used:
            self._update(used, world, self._by_touch.usage_filters, self._by_touch.usage_scores)
        if self._stale or changed or used:
            self._conclude(world, changed | used)

    def without(self, rows: Iterable[int]) -> "State":
        """For one answer: the same, but these rows are no candidates."""
        other = self.copied()
        other.feasible[list(rows)] = False
        other.feasible_count = int(np.count_nonzero(other.feasible))
        other._facts.clear()
        other._sum_up(slice(0, len(other.feasible)))
        return other

    def with_claims(self, bound: Bound, places: Sequence[int | None], world: World) -> "State":
        """For one answer: the same for a pod that has claims as well. `bound` are the rules for it, `places` where this state has
        them, None where it has not (see `bind_claims`). Everything but those is shared."""
        other = object.__new__(State)
        other.__dict__.update(self.__dict__)
        view = world.view()
        other.bound = bound
        other._refused = np.empty((len(places), len(self.feasible)), np.bool_)
        for place, known in enumerate(places):
            if known is not None:
                other._refused[place] = self._refused[known]
            else:
                other._refused[place, : view.count] = bound.filters[place].kernel.refused(view)
                other._refused[place, view.count :] = False
        other._measures = dict(self._measures)
        other._facts, other._facts_before = {}, {}
        other.feasible, other.total = np.zeros_like(self.feasible), np.zeros_like(self.total)
        other._stale = True
        other._conclude(world, set())
        return other

    def copied(self) -> "State":
        """For an overlay: the same results, kept apart from here on."""
        copy = object.__new__(State)
        for name, value in self.__dict__.items():
            # What is known of fillings holds for both.
            copy.__dict__[name] = value if name == "_fillings" else _copied(value)
        return copy

    def _start_over(self, world: World) -> None:
        capacity, view = world.columns.capacity, world.view()
        self._samples_key: Hashable = None
        self._now_ns = world.now_ns
        self._note(world)
        self._refused = np.zeros((len(self.bound.filters), capacity), np.bool_)
        for place, rule in enumerate(self.bound.filters):
            self._refused[place, : view.count] = rule.kernel.refused(view)
        self._weighted = np.zeros((len(self.bound.scores), capacity), np.int64)  # of the local ones
        self._measures: dict[int, Measures] = {}
        self._fingerprints: dict[int, Hashable] = {}
        self._filter_fingerprints = self._fingerprints_of_filters(view)
        self._facts: dict[int, tuple[Hashable, int] | None] = {}
        self._facts_before: dict[int, tuple[Hashable, int] | None] = {}
        for place in range(len(self.bound.scores)):
            self._score_all(place, world)
        self.out: frozenset[str] = frozenset()
        self.waits_for: Mapping[str, int] = {}
        self.waiting_candidates = 0
        self.feasible = np.zeros(capacity, np.bool_)
        self.feasible_count = 0
        self.total = np.zeros(capacity, np.int64)
        self._stale = True
        self._conclude(world, set())

    def _note(self, world: World) -> None:
        """Where this state stands, and whether samples and clock are others than before. `_stale`: sums have to be made anew
        for all rows."""
        key = (world.samples_key, world.metrics_known_until_ns(self._metrics)) if self._metrics else None
        self._samples_moved = key != self._samples_key
        self._time_moved = world.now_ns != self._now_ns
        self._samples_key, self._now_ns = key, world.now_ns
        self._position = world.columns.log_end
        self._overlay_position = 0 if world.overlay is None else len(world.overlay.log)
        self._stale = False

    def _answer_stale_rules(self, world: World) -> None:
        """Ask rules about all rows again where samples, the clock or facts about the whole cluster moved."""
        by = self._by_touch
        filters, scores = set[int](), set[int]()
        if self._samples_moved:
            filters |= by.samples_filters
            scores |= by.samples_scores
        if self._time_moved:
            filters |= by.time_filters
            scores |= by.time_scores
        if by.cluster_filters:
            fingerprints = self._fingerprints_of_filters(world.view())
            filters |= {
                place for place, one in fingerprints.items() if one != self._filter_fingerprints[place]
            }
            self._filter_fingerprints = fingerprints
        if by.cluster_scores:
            view = world.view()
            scores |= {
                place
                for place in by.cluster_scores
                if self.bound.scores[place].fingerprint(view) != self._fingerprints[place]
            }
        for place in filters:
            self._refused[place, : world.columns.size] = self.bound.filters[place].kernel.refused(
                world.view()
            )
        for place in scores:
            self._score_all(place, world)
        self._stale = bool(filters or scores)

    def _fingerprints_of_filters(self, view: View) -> dict[int, Hashable]:
        return {
            place: self.bound.filters[place].kernel.fingerprint(view)
            for place in self._by_touch.cluster_filters
        }

    def _score_all(self, place: int, world: World) -> None:
        rule, view = self.bound.scores[place], world.view()
        self._fingerprints[place] = rule.fingerprint(view)
        if rule.over_candidates:
            return  # measured when it is known who they are
        measures = rule.measure(view, None)
        if rule.local:
            self._weighted[place, : view.count] = rule.weight * rule.local_scores(measures)
        else:
            self._measures[place] = _lengthened(measures, world.columns.capacity)

    def _update_used_row(self, rows: set[int], world: World) -> None:
        """One node got or lost a pod: the usual change. Nodes of a pool go through the same few fillings, so what the rules say
        of a filling is kept, by the values of all columns that they look at. Rules that look at more are asked."""
        by, view = self._by_touch, world.view(rows)
        self._answer_filling(view)
        if by.further_filters or by.further_scores:
            self._answer(view, by.further_filters, by.further_scores)

    def _answer_filling(self, view: View) -> None:
        by = self._by_touch
        filling = self._filling(view)
        known = None if filling is None else self._fillings.get(filling)
        if known is not None:
            self._refused[by.filling_filters, view.rows] = known[0]
            self._weighted[by.filling_scores, view.rows] = known[1]
            return
        view.asked.clear()
        self._answer(view, by.filling_filters, by.filling_scores)
        if view.whole_answer:
            self._filling_kinds = tuple(view.asked)
            filling = self._filling(view)
            if len(self._fillings) >= _FILLINGS_MAX:
                self._fillings.clear()
            self._fillings[filling] = (
                self._refused[by.filling_filters, view.rows].copy(),
                self._weighted[by.filling_scores, view.rows].copy(),
            )

    def _filling(self, view: View) -> Hashable:
        """The values that decide, None as long as it is not known which. Codes count only with the interners that gave them."""
        if self._filling_kinds is None:
            return None
        return view.coding, *view.values(self._filling_kinds)

    def _update(self, rows: set[int], world: World, filters: Iterable[int], scores: Iterable[int]) -> None:
        """Ask these rules again about these rows."""
        self._answer(world.view(rows), filters, scores)

    def _answer(self, view: View, filters: Iterable[int], scores: Iterable[int]) -> None:
        for place in filters:
            self._refused[place, view.rows] = self.bound.filters[place].kernel.refused(view)
        for place in scores:
            rule = self.bound.scores[place]
            if rule.over_candidates:
                continue
            measures = rule.measure(view, None)
            if rule.local:
                self._weighted[place, view.rows] = rule.weight * rule.local_scores(measures)
            else:
                _put(self._measures[place], view.rows, measures)
                self._facts.pop(place, None)

    # ── concluding ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _conclude(self, world: World, rows: set[int]) -> None:
        """From what each rule says to who is feasible and what everybody's total is, for these rows or for all."""
        if self._outage is not None and self._metrics:
            self._look_for_outages(world, self._outage)
        chosen = slice(0, len(self.feasible)) if self._stale else _places(rows)
        refused = self._refused[:, chosen]
        if self.out:
            refused = refused[[not self.out.intersection(rule.metrics) for rule in self.bound.filters]]
        feasible = self._asked(world)[chosen] & ~np.logical_or.reduce(refused)
        if self.waits_for:
            feasible = np.zeros_like(feasible)
        if self._stale or np.logical_or.reduce(feasible != self.feasible[chosen]):
            self.feasible[chosen] = feasible
            self.feasible_count = int(np.count_nonzero(self.feasible))
            self._facts.clear()
        if self._whole:
            self._measure_candidates(world)
            chosen = slice(0, len(self.feasible))
        self._sum_up(chosen)

    def _measure_candidates(self, world: World) -> None:
        """One node's change can be a change for all: these are measured anew, everywhere."""
        view = world.view()
        for place in self._whole:
            measures = self.bound.scores[place].measure(view, self.feasible[: view.count])
            self._measures[place] = _lengthened(measures, world.columns.capacity)
            self._facts.pop(place, None)

    def _asked(self, world: World) -> Array:
        valid = world.columns.valid
        return valid if self._among is None else valid & self._among

    def _sum_up(self, chosen: slice | Array) -> None:
        before = self._facts_before if not self._stale else {}
        for place in self._global:
            if place not in self._facts:
                rule = self.bound.scores[place]
                self._facts[place] = rule.candidate_facts(self._measures[place], self.feasible)
        if self._facts != before:
            chosen = slice(0, len(self.feasible))
            self._facts_before = dict(self._facts)
        weighted = self._weighted[:, chosen]
        if self.out:
            weighted = weighted[[self._counts(rule) for rule in self.bound.scores]]
        total: Array = np.add.reduce(weighted)
        for place in self._global:
            rule = self.bound.scores[place]
            if self._counts(rule):
                measures = _chosen(self._measures[place], chosen)
                total += rule.weight * rule.candidate_scores(measures, self._facts[place])
        self.total[chosen] = np.where(self.feasible[chosen], total, _REFUSED_TOTAL)

    def _counts(self, rule: BoundScore) -> bool:
        return not rule.metrics or not self.out.intersection(rule.metrics)

    def _look_for_outages(self, world: World, outage: Outage) -> None:
        """Metrics that too many candidates lack; candidates of this question pass every filter without metrics. Their rules
        are `out`, or the pod `waits_for` them: so many of the `waiting_candidates` lack each."""
        candidates = self._candidates_without_metrics(world)
        count = int(np.count_nonzero(candidates))
        lacking = {
            name: int(np.count_nonzero(candidates & ~world.metrics[name].known(world.now_ns)))
            for name in sorted(self._metrics)
        }
        lacking = {name: some for name, some in lacking.items() if some > outage.above * count}
        if outage.then == "wait":
            self._stale |= bool(lacking) != bool(self.waits_for)
            self.waits_for, self.waiting_candidates = lacking, count
        else:
            self._stale |= self.out != lacking.keys()
            self.out = frozenset(lacking)

    def _candidates_without_metrics(self, world: World) -> Array:
        """bool by row: passed by every filter that reads no metric."""
        candidates = self._asked(world).copy()
        for place, rule in enumerate(self.bound.filters):
            if not rule.metrics:
                candidates &= ~self._refused[place]
        return candidates

    def would_wait(self, world: World) -> Array | None:
        """bool by row: the nodes that lack a metric and are no candidates, of which one more candidate would be too many: were it made
        room there, the pod would wait for the metric all the same. None: the policy lets nobody wait."""
        if self._outage is None or self._outage.then != "wait" or not self._metrics:
            return None
        candidates = self._candidates_without_metrics(world)
        count, found = int(np.count_nonzero(candidates)), np.zeros_like(candidates)
        for name in self._metrics:
            lacks = ~world.metrics[name].known(world.now_ns)
            if np.count_nonzero(candidates & lacks) + 1 > self._outage.above * (count + 1):
                found |= lacks
        return found & world.columns.valid & ~candidates

    # ── asking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def refused(self, place: int) -> Array | None:
        """Whom a filter refuses; None where it does not apply because of an outage."""
        return None if self.out.intersection(self.bound.filters[place].metrics) else self._refused[place]

    def best(self, pod_hash: int, name_hash: Array, among: Array | None = None) -> int | None:
        """The row with the greatest total, among equals the greatest `node_hash XOR pod_hash`. `among`: bool by row."""
        if not self.feasible_count:
            return None
        total = self.total
        if among is not None:
            total = np.where(self._inside(among), total, _REFUSED_TOTAL)
            if total.max() == _REFUSED_TOTAL:
                return None
        tied = (total == np.maximum.reduce(total)).nonzero()[0]
        if len(tied) == 1:
            return int(tied[0])
        return int(tied[np.argmax(name_hash[tied] ^ np.uint64(pod_hash))])

    def ordered(self, pod_hash: int, name_hash: Array) -> Array:
        """The feasible rows, as `best` prefers them."""
        rows = np.flatnonzero(self.feasible)
        return rows[np.lexsort((~(name_hash[rows] ^ np.uint64(pod_hash)), -self.total[rows]))]

    def feasible_among(self, among: Array) -> int:
        return int(np.count_nonzero(self._inside(among)))

    def _inside(self, among: Array) -> Array:
        found = self.feasible.copy()
        found[: len(among)] &= among
        return found


@dataclass(frozen=True, slots=True)
class _ByTouch:
    """The places of the rules that a change of each kind makes ask again. A changed node concerns all. Of those that a
    placement touches (`usage`), some read nodes and pods and nothing else, and a score is the node's own (`filling`)."""

    usage_filters: list[int]
    usage_scores: list[int]
    filling_filters: list[int]
    filling_scores: list[int]
    further_filters: list[int]
    further_scores: list[int]
    cluster_filters: frozenset[int]
    cluster_scores: frozenset[int]
    samples_filters: frozenset[int]
    samples_scores: frozenset[int]
    time_filters: frozenset[int]
    time_scores: frozenset[int]

    @staticmethod
    def of(bound: Bound) -> "_ByTouch":
        filters = [rule.kernel.touch for rule in bound.filters]
        scores = [rule.touch for rule in bound.scores]

        def places(touches: list[Touch], wanted: Touch) -> list[int]:
            return [place for place, touch in enumerate(touches) if touch & wanted]

        usage_filters, usage_scores = places(filters, Touch.USAGE), places(scores, Touch.USAGE)
        filling = Touch.NODE | Touch.USAGE
        filling_filters = [place for place in usage_filters if filters[place] == filling]
        filling_scores = [
            place for place in usage_scores if scores[place] == filling and bound.scores[place].local
        ]
        return _ByTouch(
            usage_filters=usage_filters,
            usage_scores=usage_scores,
            filling_filters=filling_filters,
            filling_scores=filling_scores,
            further_filters=[place for place in usage_filters if place not in filling_filters],
            further_scores=[place for place in usage_scores if place not in filling_scores],
            cluster_filters=frozenset(places(filters, Touch.CLUSTER | Touch.VOLUMES)),
            cluster_scores=frozenset(places(scores, Touch.CLUSTER)),
            samples_filters=frozenset(places(filters, Touch.SAMPLES)),
            samples_scores=frozenset(places(scores, Touch.SAMPLES)),
            time_filters=frozenset(places(filters, Touch.TIME)),
            time_scores=frozenset(places(scores, Touch.TIME)),
        )


def _places(rows: set[int]) -> slice | Array:
    """One row as a slice, which NumPy reads without a copy."""
    if len(rows) == 1:
        row = next(iter(rows))
        return slice(row, row + 1)
    return np.array(sorted(rows), np.intp)


def _lengthened(measures: Measures, capacity: int) -> Measures:
    def longer(array: Array | None) -> Array | None:
        if array is None:
            return None
        found = np.zeros((capacity, *array.shape[1:]), array.dtype, order="F")  # columns stay whole in memory
        found[: len(array)] = array
        return found

    raw = longer(measures.raw)
    assert raw is not None
    return Measures(raw, longer(measures.known), longer(measures.applies))


def _put(into: Measures, rows: slice | Array, measures: Measures) -> None:
    into.raw[rows] = measures.raw
    for target, source in ((into.known, measures.known), (into.applies, measures.applies)):
        if target is not None:
            target[rows] = True if source is None else source


def _chosen(measures: Measures, rows: slice | Array) -> Measures:
    return Measures(
        measures.raw[rows],
        None if measures.known is None else measures.known[rows],
        None if measures.applies is None else measures.applies[rows],
    )


def _copied(value: object) -> object:
    match value:
        case np.ndarray():
            return value.copy()
        case list():
            return [_copied(one) for one in value]
        case dict():
            return {key: _copied(one) for key, one in value.items()}
        case Measures():
            return Measures(*(_copied(one) for one in (value.raw, value.known, value.applies)))  # type: ignore[arg-type]
        case _:
            return value
