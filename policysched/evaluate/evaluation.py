"""The evaluation of one set of specialized rules, kept so that the next equal pod pays only for
changed rows.

An evaluation is shared by pods that agree on everything the plan reads. It holds which rows each
filter rejects, what each score adds, the totals, and its position in the log of changed rows.
Catching up reevaluates only the changed rows; scores that are relative to the candidates are
normalized again only when their statistics moved.
"""

from collections.abc import Generator, Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.columns.view import View
from policysched.evaluate.evaluation_rows import (
    REJECTED_TOTAL,
    UsageResults,
    best_row,
    deep_copy,
    row_selector,
)
from policysched.evaluate.outage_of_candidates import metrics_in_outage, rows_that_would_await_metrics
from policysched.evaluate.plan.specialize import SpecializedRules
from policysched.evaluate.rules.raw_scores import RawScores, assign_rows, pad_to_capacity, select_rows
from policysched.evaluate.rules.rules_by_dependency import RulesByDependency
from policysched.evaluate.rules.specialized_rules import SpecializedScore
from policysched.lang.ir.declarations import OutageSpec

_REBUILD_FRACTION = 8  # rebuild when more than 1/8 of the rows changed
_FEW_ROWS_MAX = 4  # so many are looked up one by one: rules take less for more of them at once


class Evaluation:
    """Arrays of the columns' capacity, valid for the snapshot last given to `catch_up`."""

    def __init__(
        self,
        rules: SpecializedRules,
        outage: OutageSpec | None,
        snapshot: Snapshot,
        *,
        row_mask: Array | None = None,
    ) -> None:
        """`row_mask`: the rows to evaluate (None: all); the others are rejected before all rules.
        The mask does not follow new nodes, so such an evaluation serves one answer.
        """
        self._set_rules(rules, outage, row_mask)
        self._rebuild(snapshot)

    @classmethod
    def build_in_steps(
        cls, rules: SpecializedRules, outage: OutageSpec | None, snapshot: Snapshot
    ) -> Generator[None, None, "Evaluation"]:
        """The same in steps, one for each rule. The cluster must not change before the end."""
        evaluation = object.__new__(cls)
        evaluation._set_rules(rules, outage, None)
        yield from evaluation._rebuild_in_steps(snapshot)
        return evaluation

    def _set_rules(self, rules: SpecializedRules, outage: OutageSpec | None, row_mask: Array | None) -> None:
        self.rules = rules
        self._row_mask = row_mask
        self._outage = outage
        self._metrics = tuple(dict.fromkeys(name for metrics in rules.rule_metrics() for name in metrics))
        self._node_local = [index for index, rule in enumerate(rules.scores) if rule.node_local]
        self._candidate_relative = [index for index, rule in enumerate(rules.scores) if not rule.node_local]
        self._over_candidates = [index for index, rule in enumerate(rules.scores) if rule.over_candidates]
        self._by_dependency = RulesByDependency.of(rules.filters, rules.scores)
        self._usage_results = UsageResults()
        self._rows_left: frozenset[int] = frozenset()  # with results of an overlay that was left

    # ── updates ────────────────────────────────────────────────────────────────────────────────────────────────

    def catch_up(self, snapshot: Snapshot) -> None:
        """Bring every array up to the snapshot."""
        columns = snapshot.columns
        touched = columns.touched_since(self._position)
        overlay_rows = [] if snapshot.overlay is None else snapshot.overlay.log[self._overlay_position :]
        if (
            touched is None
            or len(self.feasible) != columns.capacity
            or _REBUILD_FRACTION * (len(touched[0]) + len(touched[1])) > columns.size
        ):
            self._rebuild(snapshot)
            return
        changed, used = touched
        used |= self._rows_left.union(overlay_rows) - changed
        self._rows_left = frozenset()
        self._record_position(snapshot)
        self._reevaluate_stale_rules(snapshot)
        if changed:
            self._update(changed, snapshot, range(len(self._rejected)), range(len(self.rules.scores)))
        is_few = len(used) <= _FEW_ROWS_MAX and self._usage_results.kinds is not None
        if len(used) == 1 or (used and is_few):
            self._update_usage_rows(used, snapshot)
        elif used:
            self._update(used, snapshot, self._by_dependency.usage_filters, self._by_dependency.usage_scores)
        if self._stale or changed or used:
            self._combine(snapshot, changed | used)

    def excluding(self, rows: Iterable[int]) -> "Evaluation":
        """A copy for one answer in which these rows are no candidates."""
        other = self.copy()
        other.feasible[list(rows)] = False
        other.feasible_count = int(np.count_nonzero(other.feasible))
        other._candidate_stats.clear()
        other._sum_scores(slice(0, len(other.feasible)))
        return other

    def with_claims(
        self, rules: SpecializedRules, indexes: Sequence[int | None], snapshot: Snapshot
    ) -> "Evaluation":
        """A copy for one answer, for a pod that also has claims. `rules` are the rules for that
        pod, `indexes` their indexes in this evaluation, None for new ones (see
        `specialize_claim_rules`). Everything else is shared.
        """
        other = object.__new__(Evaluation)
        other.__dict__.update(self.__dict__)
        view = snapshot.view()
        other.rules = rules
        other._rejected = np.empty((len(indexes), len(self.feasible)), np.bool_)
        for index, known_index in enumerate(indexes):
            if known_index is not None:
                other._rejected[index] = self._rejected[known_index]
            else:
                other._rejected[index, : view.count] = rules.filters[index].kernel.rejected(view)
                other._rejected[index, view.count :] = False
        other._raw_scores = dict(self._raw_scores)
        known_scores, all_scores = len(self.rules.scores), len(rules.scores)
        if all_scores > known_scores:
            other._set_rules(rules, self._outage, self._row_mask)
            other._fingerprints = dict(self._fingerprints)
            other._weighted = np.pad(self._weighted, ((0, all_scores - known_scores), (0, 0)))
            for index in range(known_scores, all_scores):
                other._score_all(index, snapshot)
        other._candidate_stats, other._candidate_stats_before = {}, {}
        other.feasible, other.total = np.zeros_like(self.feasible), np.zeros_like(self.total)
        other._stale = True
        other._combine(snapshot, set())
        return other

    def copy(self) -> "Evaluation":
        """A copy for an overlay, which diverges from here on."""
        copy = object.__new__(Evaluation)
        copy.__dict__.update((name, deep_copy(value)) for name, value in self.__dict__.items())
        return copy

    def _rebuild(self, snapshot: Snapshot) -> None:
        for _ in self._rebuild_in_steps(snapshot):
            pass

    def _rebuild_in_steps(self, snapshot: Snapshot) -> Iterator[None]:
        capacity, view = snapshot.columns.capacity, snapshot.view()
        self._samples_key: Hashable = None
        self._now_ns = snapshot.now_ns
        self._record_position(snapshot)
        self._rejected = np.zeros((len(self.rules.filters), capacity), np.bool_)
        for index, rule in enumerate(self.rules.filters):
            self._rejected[index, : view.count] = rule.kernel.rejected(view)
            yield
        self._weighted = np.zeros((len(self.rules.scores), capacity), np.int64)  # node-local scores only
        self._raw_scores: dict[int, RawScores] = {}
        self._fingerprints: dict[int, Hashable] = {}
        self._filter_fingerprints = self._fingerprints_of_filters(view)
        self._candidate_stats: dict[int, tuple[Hashable, int] | None] = {}
        self._candidate_stats_before: dict[int, tuple[Hashable, int] | None] = {}
        for index in range(len(self.rules.scores)):
            self._score_all(index, snapshot)
            yield
        self.outage_metrics: frozenset[str] = frozenset()
        self.awaited_metrics: Mapping[str, int] = {}
        self.outage_candidate_count = 0
        self.feasible = np.zeros(capacity, np.bool_)
        self.feasible_count = 0
        self.total = np.zeros(capacity, np.int64)
        self._stale = True
        self._combine(snapshot, set())

    def _record_position(self, snapshot: Snapshot) -> None:
        """Record the position in the logs, and whether samples or the clock changed. `_stale`: all totals are to be computed."""
        key = (
            (snapshot.samples_key, snapshot.metrics_known_until_ns(self._metrics)) if self._metrics else None
        )
        self._samples_changed = key != self._samples_key
        self._time_changed = snapshot.now_ns != self._now_ns
        self._samples_key, self._now_ns = key, snapshot.now_ns
        self._position = snapshot.columns.log_end
        self._overlay_position = 0 if snapshot.overlay is None else len(snapshot.overlay.log)
        self._stale = False

    def _reevaluate_stale_rules(self, snapshot: Snapshot) -> None:
        """Reevaluate on all rows the rules whose samples, clock or cluster-wide facts changed."""
        by_dependency = self._by_dependency
        filters, scores = set[int](), set[int]()
        if self._samples_changed:
            filters |= by_dependency.samples_filters
            scores |= by_dependency.samples_scores
        if self._time_changed:
            filters |= by_dependency.time_filters
            scores |= by_dependency.time_scores
        if by_dependency.cluster_filters:
            fingerprints = self._fingerprints_of_filters(snapshot.view())
            filters |= {
                index
                for index, fingerprint in fingerprints.items()
                if fingerprint != self._filter_fingerprints[index]
            }
            self._filter_fingerprints = fingerprints
        if by_dependency.cluster_scores:
            view = snapshot.view()
            scores |= {
                index
                for index in by_dependency.cluster_scores
                if self.rules.scores[index].fingerprint(view) != self._fingerprints[index]
            }
        differs = False
        for index in filters:
            rejected = self.rules.filters[index].kernel.rejected(snapshot.view())
            before = self._rejected[index, : snapshot.columns.size]
            differs |= not np.array_equal(before, rejected)
            before[:] = rejected
        for index in scores:
            self._score_all(index, snapshot)
        # A total of a domain changes with most placements, and what it decides rarely does.
        self._stale = differs or self._samples_changed or bool(scores)

    def _fingerprints_of_filters(self, view: View) -> dict[int, Hashable]:
        return {
            index: self.rules.filters[index].kernel.fingerprint(view)
            for index in self._by_dependency.cluster_filters
        }

    def _score_all(self, index: int, snapshot: Snapshot) -> None:
        rule, view = self.rules.scores[index], snapshot.view()
        self._fingerprints[index] = rule.fingerprint(view)
        if rule.over_candidates:
            return  # measured once the candidates are known
        raw_scores = rule.raw_scores(view, None)
        if rule.node_local:
            self._weighted[index, : view.count] = rule.weight * rule.node_local_scores(raw_scores)
        else:
            self._raw_scores[index] = pad_to_capacity(raw_scores, snapshot.columns.capacity)

    def _update_usage_rows(self, rows: set[int], snapshot: Snapshot) -> None:
        """Reevaluate few nodes that gained or lost a pod, the most common change.

        Nodes of a pool go through the same few usages, so results are cached by the values of all
        columns that the rules read. Rules that read more than columns are reevaluated.
        """
        by_dependency = self._by_dependency
        for row in rows:
            self._evaluate_usage_row(snapshot.view((row,)))
        if by_dependency.other_usage_filters or by_dependency.other_usage_scores:
            self._update(rows, snapshot, by_dependency.other_usage_filters, by_dependency.other_usage_scores)

    def _evaluate_usage_row(self, view: View) -> None:
        by_dependency, results = self._by_dependency, self._usage_results
        usage_key = self._usage_key(view)
        cached = None if usage_key is None else results.by_key.get(usage_key)
        if cached is not None:
            self._rejected[by_dependency.usage_only_filters, view.rows] = cached[0]
            self._weighted[by_dependency.usage_only_scores, view.rows] = cached[1]
            return
        view.columns_read.clear()
        self._evaluate_rules(view, by_dependency.usage_only_filters, by_dependency.usage_only_scores)
        if view.reads_only_columns:
            results.kinds = tuple(view.columns_read)
            usage_key = self._usage_key(view)
            rejected = self._rejected[by_dependency.usage_only_filters, view.rows].copy()
            results.put(
                usage_key, rejected, self._weighted[by_dependency.usage_only_scores, view.rows].copy()
            )

    def _usage_key(self, view: View) -> Hashable:
        """The column values that decide the result; None until it is known which. Codes are only
        comparable within one version of the interners."""
        kinds = self._usage_results.kinds
        return None if kinds is None else (view.codes_version, *view.values(kinds))

    def _update(
        self, rows: set[int], snapshot: Snapshot, filters: Iterable[int], scores: Iterable[int]
    ) -> None:
        """Reevaluate these rules on these rows."""
        self._evaluate_rules(snapshot.view(rows), filters, scores)

    def _evaluate_rules(self, view: View, filters: Iterable[int], scores: Iterable[int]) -> None:
        for index in filters:
            self._rejected[index, view.rows] = self.rules.filters[index].kernel.rejected(view)
        for index in scores:
            rule = self.rules.scores[index]
            if rule.over_candidates:
                continue
            raw_scores = rule.raw_scores(view, None)
            if rule.node_local:
                self._weighted[index, view.rows] = rule.weight * rule.node_local_scores(raw_scores)
            else:
                assign_rows(self._raw_scores[index], view.rows, raw_scores)
                self._candidate_stats.pop(index, None)

    # ── feasibility and totals ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _combine(self, snapshot: Snapshot, rows: set[int]) -> None:
        """Compute feasibility and totals from the results of the rules, for these rows or for all."""
        if self._outage is not None and self._metrics:
            self._detect_outages(snapshot, self._outage)
        selector = slice(0, len(self.feasible)) if self._stale else row_selector(rows)
        rejected = self._rejected[:, selector]
        if self.outage_metrics:
            rejected = rejected[
                [not self.outage_metrics.intersection(rule.metrics) for rule in self.rules.filters]
            ]
        feasible = self.evaluated_rows(snapshot)[selector] & ~np.logical_or.reduce(rejected)
        if self.awaited_metrics:
            feasible = np.zeros_like(feasible)
        if self._stale or np.logical_or.reduce(feasible != self.feasible[selector]):
            self.feasible[selector] = feasible
            self.feasible_count = int(np.count_nonzero(self.feasible))
            self._candidate_stats.clear()
        if self._over_candidates:
            self._rescore_over_candidates(snapshot)
            selector = slice(0, len(self.feasible))
        self._sum_scores(selector)

    def _rescore_over_candidates(self, snapshot: Snapshot) -> None:
        """Measure again on every row: one node's change can change the values of all."""
        for index in self._over_candidates:
            self._raw_scores[index] = self._raw_scores_among(index, self.feasible, snapshot)
            self._candidate_stats.pop(index, None)

    def evaluated_rows(self, snapshot: Snapshot) -> Array:
        valid = snapshot.columns.valid
        return valid if self._row_mask is None else valid & self._row_mask

    def _sum_scores(self, rows: slice | Array) -> None:
        before = self._candidate_stats_before if not self._stale else {}
        for index in self._candidate_relative:
            if index not in self._candidate_stats:
                rule = self.rules.scores[index]
                self._candidate_stats[index] = rule.candidate_stats(self._raw_scores[index], self.feasible)
        if self._candidate_stats != before:
            rows = slice(0, len(self.feasible))
            self._candidate_stats_before = dict(self._candidate_stats)
        weighted = self._weighted[:, rows]
        if self.outage_metrics:
            weighted = weighted[[self._is_active(rule) for rule in self.rules.scores]]
        total: Array = np.add.reduce(weighted)
        for index in self._candidate_relative:
            rule = self.rules.scores[index]
            if self._is_active(rule):
                raw_scores = select_rows(self._raw_scores[index], rows)
                total += rule.weight * rule.candidate_scores(raw_scores, self._candidate_stats[index])
        self.total[rows] = np.where(self.feasible[rows], total, REJECTED_TOTAL)

    def _is_active(self, rule: SpecializedScore) -> bool:
        return not rule.metrics or not self.outage_metrics.intersection(rule.metrics)

    def _detect_outages(self, snapshot: Snapshot, outage: OutageSpec) -> None:
        """Update `outage_metrics`, or `awaited_metrics` where the pod waits for them."""
        lacking, count = metrics_in_outage(
            outage, self._metrics, self._candidates_without_metrics(snapshot), snapshot
        )
        if outage.action == "wait":
            self._stale |= bool(lacking) != bool(self.awaited_metrics)
            self.awaited_metrics, self.outage_candidate_count = lacking, count
        else:
            self._stale |= self.outage_metrics != lacking.keys()
            self.outage_metrics = frozenset(lacking)

    def _candidates_without_metrics(self, snapshot: Snapshot) -> Array:
        """bool by row: passed by every filter that reads no metric."""
        candidates = self.evaluated_rows(snapshot).copy()
        for index, rule in enumerate(self.rules.filters):
            if not rule.metrics:
                candidates &= ~self._rejected[index]
        return candidates

    def would_await_metrics(self, snapshot: Snapshot) -> Array | None:
        """bool by row: nodes that are no candidates and lack a metric, where eviction would not help: with the node
        as one more candidate the pod would wait for the metric. None: the policy has no such wait."""
        if self._outage is None or self._outage.action != "wait" or not self._metrics:
            return None
        return rows_that_would_await_metrics(
            self._outage, self._metrics, self._candidates_without_metrics(snapshot), snapshot
        )

    # ── results ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def rejected(self, index: int) -> Array | None:
        """The rows that a filter rejects; None where a metric outage disables it."""
        return (
            None
            if self.outage_metrics.intersection(self.rules.filters[index].metrics)
            else self._rejected[index]
        )

    def best_row(self, pod_hash: int, name_hash: Array, row_mask: Array | None = None) -> int | None:
        """The row with the greatest total; among equals the greatest `node_hash XOR pod_hash`.
        `row_mask`: bool by row.
        """
        return best_row(self.total, pod_hash, name_hash, row_mask) if self.feasible_count else None

    def rejected_rows(self, index: int) -> Array:
        """The rows that a filter rejects, as `rejected`, where no outage disables rules."""
        rows: Array = self._rejected[index]
        return rows

    def weighted_scores(self, index: int, candidates: Array, snapshot: Snapshot) -> Array:
        """What one score adds to the total of each row, if these rows are the candidates."""
        rule = self.rules.scores[index]
        if rule.node_local:
            weighted: Array = self._weighted[index]
            return weighted
        raw_scores = self._raw_scores_among(index, candidates, snapshot)
        return rule.weight * rule.candidate_scores(raw_scores, rule.candidate_stats(raw_scores, candidates))

    def totals_among(self, candidates: Array, snapshot: Snapshot) -> Array:
        """The totals if only these of the feasible rows were candidates: scores relative to the candidates change."""
        total = self.total
        for index in self._candidate_relative:
            rule, before = self.rules.scores[index], self._candidate_stats[index]
            raw_scores = self._raw_scores_among(index, candidates, snapshot)
            stats = rule.candidate_stats(raw_scores, candidates)
            if self._is_active(rule) and (rule.over_candidates or stats != before):
                scores = rule.candidate_scores(raw_scores, stats)
                total = total + rule.weight * (
                    scores - rule.candidate_scores(self._raw_scores[index], before)
                )
        return np.where(candidates, total, REJECTED_TOTAL)

    def _raw_scores_among(self, index: int, candidates: Array, snapshot: Snapshot) -> RawScores:
        rule = self.rules.scores[index]
        if not rule.over_candidates:
            return self._raw_scores[index]
        view = snapshot.view()
        return pad_to_capacity(rule.raw_scores(view, candidates[: view.count]), snapshot.columns.capacity)

    def rows_by_preference(self, pod_hash: int, name_hash: Array) -> Array:
        """The feasible rows in the order in which `best_row` would select them."""
        rows = np.flatnonzero(self.feasible)
        return rows[np.lexsort((~(name_hash[rows] ^ np.uint64(pod_hash)), -self.total[rows]))]

    def feasible_count_in(self, row_mask: Array) -> int:
        return int(np.count_nonzero(self._feasible_in(row_mask)))

    def _feasible_in(self, among: Array) -> Array:
        feasible = self.feasible.copy()
        feasible[: len(among)] &= among
        return feasible
