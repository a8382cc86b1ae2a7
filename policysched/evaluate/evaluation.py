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
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.columns.view import View
from policysched.evaluate.compile.specialize import SpecializedRules
from policysched.evaluate.kernel import Dependency
from policysched.evaluate.rules.specialized_rules import RawScores, SpecializedScore
from policysched.lang.ir.declarations import OutageSpec

_REBUILD_FRACTION = 8  # a share of the rows: if more than one in so many changed, starting over is cheaper
_REFUSED_TOTAL = -1
_USAGE_CACHE_MAX = 4096


class Evaluation:
    """Arrays of the columns' capacity, valid for the world that `catch_up` was last given."""

    def __init__(
        self,
        bound: SpecializedRules,
        outage: OutageSpec | None,
        world: Snapshot,
        *,
        row_mask: Array | None = None,
    ) -> None:
        """`row_mask`: the rows that are asked about (None: all); the others are refused ahead of all rules. It does not
        follow nodes that come, so such a state is made for one answer."""
        self.rules = bound
        self._row_mask = row_mask
        self._outage = outage
        self._metrics = tuple(dict.fromkeys(name for metrics in bound.rule_metrics() for name in metrics))
        self._node_local = [place for place, rule in enumerate(bound.scores) if rule.node_local]
        self._candidate_relative = [place for place, rule in enumerate(bound.scores) if not rule.node_local]
        self._over_candidates = [place for place, rule in enumerate(bound.scores) if rule.over_candidates]
        self._by_dependency = _RulesByDependency.of(bound)
        self._usage_key_kinds: tuple[ColumnKind, ...] | None = None
        self._usage_cache: dict[Hashable, tuple[Array, Array]] = {}
        self._rebuild(world)

    # ── catching up ────────────────────────────────────────────────────────────────────────────────────────────────

    def catch_up(self, world: Snapshot) -> None:
        """Bring every array to the state of the world."""
        columns = world.columns
        touched = columns.touched_since(self._position)
        overlay_rows = [] if world.overlay is None else world.overlay.log[self._overlay_position :]
        if (
            touched is None
            or len(self.feasible) != columns.capacity
            or _REBUILD_FRACTION * (len(touched[0]) + len(touched[1])) > columns.size
        ):
            self._rebuild(world)
            return
        changed, used = touched
        used |= set(overlay_rows) - changed
        self._record_position(world)
        self._reevaluate_stale_rules(world)
        if changed:
            self._update(changed, world, range(len(self._refused)), range(len(self.rules.scores)))
        if len(used) == 1:
            self._update_usage_row(used, world)
        elif used:
            self._update(used, world, self._by_dependency.usage_filters, self._by_dependency.usage_scores)
        if self._stale or changed or used:
            self._combine(world, changed | used)

    def excluding(self, rows: Iterable[int]) -> "Evaluation":
        """For one answer: the same, but these rows are no candidates."""
        other = self.copy()
        other.feasible[list(rows)] = False
        other.feasible_count = int(np.count_nonzero(other.feasible))
        other._candidate_stats.clear()
        other._sum_scores(slice(0, len(other.feasible)))
        return other

    def with_claims(
        self, bound: SpecializedRules, places: Sequence[int | None], world: Snapshot
    ) -> "Evaluation":
        """For one answer: the same for a pod that has claims as well. `rules` are the rules for it, `places` where this state has
        them, None where it has not (see `bind_claims`). Everything but those is shared."""
        other = object.__new__(Evaluation)
        other.__dict__.update(self.__dict__)
        view = world.view()
        other.rules = bound
        other._refused = np.empty((len(places), len(self.feasible)), np.bool_)
        for place, known in enumerate(places):
            if known is not None:
                other._refused[place] = self._refused[known]
            else:
                other._refused[place, : view.count] = bound.filters[place].kernel.refused(view)
                other._refused[place, view.count :] = False
        other._raw_scores = dict(self._raw_scores)
        other._candidate_stats, other._candidate_stats_before = {}, {}
        other.feasible, other.total = np.zeros_like(self.feasible), np.zeros_like(self.total)
        other._stale = True
        other._combine(world, set())
        return other

    def copy(self) -> "Evaluation":
        """For an overlay: the same results, kept apart from here on."""
        copy = object.__new__(Evaluation)
        for name, value in self.__dict__.items():
            # What is known of fillings holds for both.
            copy.__dict__[name] = value if name == "_fillings" else _deep_copy(value)
        return copy

    def _rebuild(self, world: Snapshot) -> None:
        capacity, view = world.columns.capacity, world.view()
        self._samples_key: Hashable = None
        self._now_ns = world.now_ns
        self._record_position(world)
        self._refused = np.zeros((len(self.rules.filters), capacity), np.bool_)
        for place, rule in enumerate(self.rules.filters):
            self._refused[place, : view.count] = rule.kernel.refused(view)
        self._weighted = np.zeros((len(self.rules.scores), capacity), np.int64)  # of the local ones
        self._raw_scores: dict[int, RawScores] = {}
        self._fingerprints: dict[int, Hashable] = {}
        self._filter_fingerprints = self._fingerprints_of_filters(view)
        self._candidate_stats: dict[int, tuple[Hashable, int] | None] = {}
        self._candidate_stats_before: dict[int, tuple[Hashable, int] | None] = {}
        for place in range(len(self.rules.scores)):
            self._score_all(place, world)
        self.outage_metrics: frozenset[str] = frozenset()
        self.awaited_metrics: Mapping[str, int] = {}
        self.outage_candidate_count = 0
        self.feasible = np.zeros(capacity, np.bool_)
        self.feasible_count = 0
        self.total = np.zeros(capacity, np.int64)
        self._stale = True
        self._combine(world, set())

    def _record_position(self, world: Snapshot) -> None:
        """Where this state stands, and whether samples and clock are others than before. `_stale`: sums have to be made anew
        for all rows."""
        key = (world.samples_key, world.metrics_known_until_ns(self._metrics)) if self._metrics else None
        self._samples_changed = key != self._samples_key
        self._time_changed = world.now_ns != self._now_ns
        self._samples_key, self._now_ns = key, world.now_ns
        self._position = world.columns.log_end
        self._overlay_position = 0 if world.overlay is None else len(world.overlay.log)
        self._stale = False

    def _reevaluate_stale_rules(self, world: Snapshot) -> None:
        """Ask rules about all rows again where samples, the clock or facts about the whole cluster moved."""
        by = self._by_dependency
        filters, scores = set[int](), set[int]()
        if self._samples_changed:
            filters |= by.samples_filters
            scores |= by.samples_scores
        if self._time_changed:
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
                if self.rules.scores[place].fingerprint(view) != self._fingerprints[place]
            }
        for place in filters:
            self._refused[place, : world.columns.size] = self.rules.filters[place].kernel.refused(
                world.view()
            )
        for place in scores:
            self._score_all(place, world)
        self._stale = bool(filters or scores)

    def _fingerprints_of_filters(self, view: View) -> dict[int, Hashable]:
        return {
            place: self.rules.filters[place].kernel.fingerprint(view)
            for place in self._by_dependency.cluster_filters
        }

    def _score_all(self, place: int, world: Snapshot) -> None:
        rule, view = self.rules.scores[place], world.view()
        self._fingerprints[place] = rule.fingerprint(view)
        if rule.over_candidates:
            return  # measured when it is known who they are
        measures = rule.raw_scores(view, None)
        if rule.node_local:
            self._weighted[place, : view.count] = rule.weight * rule.node_local_scores(measures)
        else:
            self._raw_scores[place] = _pad_to_capacity(measures, world.columns.capacity)

    def _update_usage_row(self, rows: set[int], world: Snapshot) -> None:
        """One node got or lost a pod: the usual change. Nodes of a pool go through the same few fillings, so what the rules say
        of a filling is kept, by the values of all columns that they look at. Rules that look at more are asked."""
        by, view = self._by_dependency, world.view(rows)
        self._evaluate_usage_row(view)
        if by.other_usage_filters or by.other_usage_scores:
            self._evaluate_rules(view, by.other_usage_filters, by.other_usage_scores)

    def _evaluate_usage_row(self, view: View) -> None:
        by = self._by_dependency
        filling = self._usage_key(view)
        known = None if filling is None else self._usage_cache.get(filling)
        if known is not None:
            self._refused[by.usage_only_filters, view.rows] = known[0]
            self._weighted[by.usage_only_scores, view.rows] = known[1]
            return
        view.columns_read.clear()
        self._evaluate_rules(view, by.usage_only_filters, by.usage_only_scores)
        if view.reads_only_columns:
            self._usage_key_kinds = tuple(view.columns_read)
            filling = self._usage_key(view)
            if len(self._usage_cache) >= _USAGE_CACHE_MAX:
                self._usage_cache.clear()
            self._usage_cache[filling] = (
                self._refused[by.usage_only_filters, view.rows].copy(),
                self._weighted[by.usage_only_scores, view.rows].copy(),
            )

    def _usage_key(self, view: View) -> Hashable:
        """The values that decide, None as long as it is not known which. Codes count only with the interners that gave them."""
        if self._usage_key_kinds is None:
            return None
        return view.codes_version, *view.values(self._usage_key_kinds)

    def _update(self, rows: set[int], world: Snapshot, filters: Iterable[int], scores: Iterable[int]) -> None:
        """Ask these rules again about these rows."""
        self._evaluate_rules(world.view(rows), filters, scores)

    def _evaluate_rules(self, view: View, filters: Iterable[int], scores: Iterable[int]) -> None:
        for place in filters:
            self._refused[place, view.rows] = self.rules.filters[place].kernel.refused(view)
        for place in scores:
            rule = self.rules.scores[place]
            if rule.over_candidates:
                continue
            measures = rule.raw_scores(view, None)
            if rule.node_local:
                self._weighted[place, view.rows] = rule.weight * rule.node_local_scores(measures)
            else:
                _assign_rows(self._raw_scores[place], view.rows, measures)
                self._candidate_stats.pop(place, None)

    # ── concluding ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _combine(self, world: Snapshot, rows: set[int]) -> None:
        """From what each rule says to who is feasible and what everybody's total is, for these rows or for all."""
        if self._outage is not None and self._metrics:
            self._detect_outages(world, self._outage)
        chosen = slice(0, len(self.feasible)) if self._stale else _row_selector(rows)
        refused = self._refused[:, chosen]
        if self.outage_metrics:
            refused = refused[
                [not self.outage_metrics.intersection(rule.metrics) for rule in self.rules.filters]
            ]
        feasible = self._evaluated_rows(world)[chosen] & ~np.logical_or.reduce(refused)
        if self.awaited_metrics:
            feasible = np.zeros_like(feasible)
        if self._stale or np.logical_or.reduce(feasible != self.feasible[chosen]):
            self.feasible[chosen] = feasible
            self.feasible_count = int(np.count_nonzero(self.feasible))
            self._candidate_stats.clear()
        if self._over_candidates:
            self._rescore_over_candidates(world)
            chosen = slice(0, len(self.feasible))
        self._sum_scores(chosen)

    def _rescore_over_candidates(self, world: Snapshot) -> None:
        """One node's change can be a change for all: these are measured anew, everywhere."""
        view = world.view()
        for place in self._over_candidates:
            measures = self.rules.scores[place].raw_scores(view, self.feasible[: view.count])
            self._raw_scores[place] = _pad_to_capacity(measures, world.columns.capacity)
            self._candidate_stats.pop(place, None)

    def _evaluated_rows(self, world: Snapshot) -> Array:
        valid = world.columns.valid
        return valid if self._row_mask is None else valid & self._row_mask

    def _sum_scores(self, chosen: slice | Array) -> None:
        before = self._candidate_stats_before if not self._stale else {}
        for place in self._candidate_relative:
            if place not in self._candidate_stats:
                rule = self.rules.scores[place]
                self._candidate_stats[place] = rule.candidate_stats(self._raw_scores[place], self.feasible)
        if self._candidate_stats != before:
            chosen = slice(0, len(self.feasible))
            self._candidate_stats_before = dict(self._candidate_stats)
        weighted = self._weighted[:, chosen]
        if self.outage_metrics:
            weighted = weighted[[self._is_active(rule) for rule in self.rules.scores]]
        total: Array = np.add.reduce(weighted)
        for place in self._candidate_relative:
            rule = self.rules.scores[place]
            if self._is_active(rule):
                measures = _select_rows(self._raw_scores[place], chosen)
                total += rule.weight * rule.candidate_scores(measures, self._candidate_stats[place])
        self.total[chosen] = np.where(self.feasible[chosen], total, _REFUSED_TOTAL)

    def _is_active(self, rule: SpecializedScore) -> bool:
        return not rule.metrics or not self.outage_metrics.intersection(rule.metrics)

    def _detect_outages(self, world: Snapshot, outage: OutageSpec) -> None:
        """Metrics that too many candidates lack; candidates of this question pass every filter without metrics. Their rules
        are `outage_metrics`, or the pod `awaited_metrics` them: so many of the `outage_candidate_count` lack each."""
        candidates = self._candidates_without_metrics(world)
        count = int(np.count_nonzero(candidates))
        lacking = {
            name: int(np.count_nonzero(candidates & ~world.metrics[name].known(world.now_ns)))
            for name in sorted(self._metrics)
        }
        lacking = {name: some for name, some in lacking.items() if some > outage.missing_ratio_max * count}
        if outage.action == "wait":
            self._stale |= bool(lacking) != bool(self.awaited_metrics)
            self.awaited_metrics, self.outage_candidate_count = lacking, count
        else:
            self._stale |= self.outage_metrics != lacking.keys()
            self.outage_metrics = frozenset(lacking)

    def _candidates_without_metrics(self, world: Snapshot) -> Array:
        """bool by row: passed by every filter that reads no metric."""
        candidates = self._evaluated_rows(world).copy()
        for place, rule in enumerate(self.rules.filters):
            if not rule.metrics:
                candidates &= ~self._refused[place]
        return candidates

    def would_await_metrics(self, world: Snapshot) -> Array | None:
        """bool by row: the nodes that lack a metric and are no candidates, of which one more candidate would be too many: were it made
        room there, the pod would wait for the metric all the same. None: the policy lets nobody wait."""
        if self._outage is None or self._outage.action != "wait" or not self._metrics:
            return None
        candidates = self._candidates_without_metrics(world)
        count, found = int(np.count_nonzero(candidates)), np.zeros_like(candidates)
        for name in self._metrics:
            lacks = ~world.metrics[name].known(world.now_ns)
            if np.count_nonzero(candidates & lacks) + 1 > self._outage.missing_ratio_max * (count + 1):
                found |= lacks
        return found & world.columns.valid & ~candidates

    # ── asking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def refused(self, place: int) -> Array | None:
        """Whom a filter refuses; None where it does not apply because of an outage."""
        return (
            None
            if self.outage_metrics.intersection(self.rules.filters[place].metrics)
            else self._refused[place]
        )

    def best_row(self, pod_hash: int, name_hash: Array, row_mask: Array | None = None) -> int | None:
        """The row with the greatest total, among equals the greatest `node_hash XOR pod_hash`. `row_mask`: bool by row."""
        if not self.feasible_count:
            return None
        total = self.total
        if row_mask is not None:
            total = np.where(self._feasible_in(row_mask), total, _REFUSED_TOTAL)
            if total.max() == _REFUSED_TOTAL:
                return None
        tied = (total == np.maximum.reduce(total)).nonzero()[0]
        if len(tied) == 1:
            return int(tied[0])
        return int(tied[np.argmax(name_hash[tied] ^ np.uint64(pod_hash))])

    def rows_by_preference(self, pod_hash: int, name_hash: Array) -> Array:
        """The feasible rows, as `best_row` prefers them."""
        rows = np.flatnonzero(self.feasible)
        return rows[np.lexsort((~(name_hash[rows] ^ np.uint64(pod_hash)), -self.total[rows]))]

    def feasible_count_in(self, row_mask: Array) -> int:
        return int(np.count_nonzero(self._feasible_in(row_mask)))

    def _feasible_in(self, among: Array) -> Array:
        found = self.feasible.copy()
        found[: len(among)] &= among
        return found


@dataclass(frozen=True, slots=True)
class _RulesByDependency:
    """The places of the rules that a change of each kind makes ask again. A changed node concerns all. Of those that a
    placement touches (`usage`), some read nodes and pods and nothing else, and a score is the node's own (`filling`)."""

    usage_filters: list[int]
    usage_scores: list[int]
    usage_only_filters: list[int]
    usage_only_scores: list[int]
    other_usage_filters: list[int]
    other_usage_scores: list[int]
    cluster_filters: frozenset[int]
    cluster_scores: frozenset[int]
    samples_filters: frozenset[int]
    samples_scores: frozenset[int]
    time_filters: frozenset[int]
    time_scores: frozenset[int]

    @staticmethod
    def of(bound: SpecializedRules) -> "_RulesByDependency":
        filters = [rule.kernel.depends_on for rule in bound.filters]
        scores = [rule.depends_on for rule in bound.scores]

        def places(touches: list[Dependency], wanted: Dependency) -> list[int]:
            return [place for place, touch in enumerate(touches) if touch & wanted]

        usage_filters, usage_scores = places(filters, Dependency.USAGE), places(scores, Dependency.USAGE)
        filling = Dependency.NODE | Dependency.USAGE
        filling_filters = [place for place in usage_filters if filters[place] == filling]
        filling_scores = [
            place for place in usage_scores if scores[place] == filling and bound.scores[place].node_local
        ]
        return _RulesByDependency(
            usage_filters=usage_filters,
            usage_scores=usage_scores,
            usage_only_filters=filling_filters,
            usage_only_scores=filling_scores,
            other_usage_filters=[place for place in usage_filters if place not in filling_filters],
            other_usage_scores=[place for place in usage_scores if place not in filling_scores],
            cluster_filters=frozenset(places(filters, Dependency.CLUSTER | Dependency.VOLUMES)),
            cluster_scores=frozenset(places(scores, Dependency.CLUSTER)),
            samples_filters=frozenset(places(filters, Dependency.SAMPLES)),
            samples_scores=frozenset(places(scores, Dependency.SAMPLES)),
            time_filters=frozenset(places(filters, Dependency.TIME)),
            time_scores=frozenset(places(scores, Dependency.TIME)),
        )


def _row_selector(rows: set[int]) -> slice | Array:
    """One row as a slice, which NumPy reads without a copy."""
    if len(rows) == 1:
        row = next(iter(rows))
        return slice(row, row + 1)
    return np.array(sorted(rows), np.intp)


def _pad_to_capacity(measures: RawScores, capacity: int) -> RawScores:
    def longer(array: Array | None) -> Array | None:
        if array is None:
            return None
        found = np.zeros((capacity, *array.shape[1:]), array.dtype, order="F")  # columns stay whole in memory
        found[: len(array)] = array
        return found

    raw = longer(measures.raw)
    assert raw is not None
    return RawScores(raw, longer(measures.known), longer(measures.applies))


def _assign_rows(into: RawScores, rows: slice | Array, measures: RawScores) -> None:
    into.raw[rows] = measures.raw
    for target, source in ((into.known, measures.known), (into.applies, measures.applies)):
        if target is not None:
            target[rows] = True if source is None else source


def _select_rows(measures: RawScores, rows: slice | Array) -> RawScores:
    return RawScores(
        measures.raw[rows],
        None if measures.known is None else measures.known[rows],
        None if measures.applies is None else measures.applies[rows],
    )


def _deep_copy(value: object) -> object:
    match value:
        case np.ndarray():
            return value.copy()
        case list():
            return [_deep_copy(one) for one in value]
        case dict():
            return {key: _deep_copy(one) for key, one in value.items()}
        case RawScores():
            return RawScores(*(_deep_copy(one) for one in (value.raw, value.known, value.applies)))  # type: ignore[arg-type]
        case _:
            return value
