"""Spreading over topology domains, over counts a row that are summed by domain.

What depends on nodes alone (which of them are counted, how many domains there are) is kept until a node changes.
Source of the formula: kubernetes v1.36 `pkg/scheduler/framework/plugins/podtopologyspread`.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from policysched.builtins.node_affinity import kernel as node_affinity
from policysched.builtins.taint_toleration import kernel as taint_toleration
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.domains import domain_codes, sum_by_domain
from policysched.evaluate.columns.interner import Interner
from policysched.evaluate.columns.placed_pods import PodMatcher, PodTally
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import (
    EMPTY_CLUSTER_CONTEXT,
    MAX_SCORE,
    ClusterContext,
    Dependency,
    FilterKernel,
    FilterKernelBase,
    KernelParams,
    Normalizer,
    ScoreKernel,
    ScoreKernelBase,
)
from policysched.model.affinity import TopologySpreadConstraint
from policysched.model.pods import Pod

_RAW_SCORE_LIMIT = 2**62
_HOSTNAME = "kubernetes.io/hostname"
_SYSTEM_DEFAULT_CONSTRAINTS = ((_HOSTNAME, 3), ("topology.kubernetes.io/zone", 5))


def specialize_filter(pod: Pod, params: KernelParams, around: ClusterContext) -> FilterKernel | None:
    hard = (
        [one for one in pod.spread if one.hard]
        if pod.spread
        else _default_constraints(params, around, hard=True)
    )
    return _Filter(pod, hard) if hard else None


def specialize_score(pod: Pod, params: KernelParams, around: ClusterContext) -> ScoreKernel | None:
    soft = (
        [one for one in pod.spread if not one.hard]
        if pod.spread
        else _default_constraints(params, around, hard=False)
    )
    kind = not pod.spread and params["default_constraints"] == "system"
    return _Score(pod, soft, require_all_topologies=not kind) if soft else None


def _default_constraints(
    params: KernelParams, around: ClusterContext, *, hard: bool
) -> list[TopologySpreadConstraint]:
    """Those of a pod that has none of its own."""
    given, siblings = params["default_constraints"], around.selector_group
    if siblings is None or given == "none":
        return []
    skews = _SYSTEM_DEFAULT_CONSTRAINTS if given == "system" else given
    assert isinstance(skews, tuple), f"constraints {given!r}"
    return [
        TopologySpreadConstraint(
            str(key),
            int(skew),
            min_domains=1,
            hard=hard,
            label_selector=siblings.label_selector,
            honors_affinity=True,
            honors_taints=False,
            selects_itself=siblings.selects_itself,
        )
        for key, skew in skews
    ]


@dataclass(frozen=True, slots=True)
class _ConstraintDomains:
    """For one constraint, of all rows: the code of each row's domain, whether it is counted (as 0.0 and 1.0; None: all
    that have a domain), which codes have a counted row, and which rows have the label. Where not every key is needed, rows
    without the label are in the domain of the empty value, as in kube-scheduler."""

    codes: Array
    counted: Array | None
    has_counted_rows: Array
    labelled: Array
    all_labelled: bool


class _ConstraintSet:
    """Those of one pod that are looked at together."""

    def __init__(
        self,
        pod: Pod,
        constraints: Sequence[TopologySpreadConstraint],
        *,
        require_all_topologies: bool = True,
    ) -> None:
        self.all = constraints
        self._require_all_topologies = require_all_topologies
        self._pod_selectors = [_pod_selector(pod, one) for one in constraints]
        self._affinity = node_affinity.specialize_filter(pod, {}, EMPTY_CLUSTER_CONTEXT)
        self._taints = taint_toleration.specialize_filter(pod, {}, EMPTY_CLUSTER_CONTEXT)
        self._domains: tuple[int, list[_ConstraintDomains]] | None = None

    def domains(self, view: View) -> list[_ConstraintDomains]:
        version = view.topology_version
        if self._domains is None or self._domains[0] != version:
            self._domains = version, self._build_domains(view.all_rows())
        return self._domains[1]

    def counts_by_row(self, view: View, place: int) -> Array:
        """float64, for all rows: how many pods the constraint of this place counts there."""
        tally, count = self._tally(view, place), view.all_rows().count
        if tally is None:
            return np.zeros(count)
        return view.row_counts(tally).array(view.placed_pods.capacity)[:count]

    def counts_by_domain(self, view: View, place: int) -> Array:
        """float64 by code: the counted pods."""
        ground, amounts = self.domains(view)[place], self.counts_by_row(view, place)
        return sum_by_domain(ground.codes, amounts if ground.counted is None else amounts * ground.counted)

    def fingerprint(self, view: View) -> Hashable:
        tallies = [self._tally(view, place) for place in range(len(self.all))]
        return view.topology_version, tuple(
            [view.row_counts(one).version for one in tallies if one is not None]
        )

    def _tally(self, view: View, place: int) -> PodTally | None:
        meant = self._pod_selectors[place]
        return None if meant is None else view.placed_pods.tally(meant)

    def _build_domains(self, view: View) -> list[_ConstraintDomains]:
        codes = [domain_codes(view, one.topology_key) for one in self.all]
        labelled = [one > 0 for one in codes]
        whole = np.logical_and.reduce(labelled)
        if not self._require_all_topologies:
            whole = np.ones(view.count, np.bool_)
            nameless = [_empty_value_domain(view, one.topology_key) for one in self.all]
            codes = [np.where(one > 0, one, other) for one, other in zip(codes, nameless, strict=True)]
        found = []
        for one, of_rows, has in zip(self.all, codes, labelled, strict=True):
            counted = whole
            if one.honors_affinity and self._affinity is not None:
                counted = counted & ~self._affinity.refused(view)
            if one.honors_taints and self._taints is not None:
                counted = counted & ~self._taints.refused(view)
            there = np.bincount(of_rows, weights=counted) > 0
            everywhere = np.array_equal(counted, of_rows > 0)
            found.append(
                _ConstraintDomains(
                    of_rows.copy(),
                    None if everywhere else counted.astype(np.float64),
                    there,
                    has,
                    bool(has.all()),
                )
            )
        return found


def _empty_value_domain(view: View, key: str) -> int:
    """The code of the domain of the empty value."""
    return 1 + view.codes.domains.setdefault(key, Interner()).code("")


def _pod_selector(pod: Pod, one: TopologySpreadConstraint) -> PodMatcher | None:
    """A selector without requirements counts nothing, as one that is not there."""
    if one.label_selector is None or not one.label_selector.requirements:
        return None
    return PodMatcher(((frozenset((pod.namespace,)), one.label_selector),), exclude_terminating=True)


class _Filter(FilterKernelBase):
    depends_on = Dependency.NODE | Dependency.CLUSTER

    def __init__(self, pod: Pod, hard: Sequence[TopologySpreadConstraint]) -> None:
        self._constraints = _ConstraintSet(pod, hard)

    def refused(self, view: View) -> Array:
        unlabelled, crowded = self._violations(view)
        return np.asarray((unlabelled | crowded)[view.rows])

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        unlabelled, crowded = self._violations(view)
        reason = "node(s) didn't match pod topology spread constraints"
        return (
            (f"{reason} (missing required label)", unlabelled[view.rows]),
            (reason, crowded[view.rows]),
        )

    def unresolvable(self, view: View) -> Array:
        return np.asarray(self._violations(view)[0][view.rows])

    def fingerprint(self, view: View) -> Hashable:
        return self._constraints.fingerprint(view)

    def _violations(self, view: View) -> tuple[Array, Array]:
        """For all rows: which lack a label, and which have too many pods. The first constraint that refuses decides."""
        count = view.all_rows().count
        unlabelled, crowded = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        grounds = self._constraints.domains(view)
        for place, (one, ground) in enumerate(zip(self._constraints.all, grounds, strict=True)):
            in_domains = self._constraints.counts_by_domain(view, place)
            domain_count = int(np.count_nonzero(ground.has_counted_rows))
            least = float(in_domains[ground.has_counted_rows].min()) if domain_count else math.inf
            if domain_count < one.min_domains:
                least = 0
            too_many = in_domains + (int(one.selects_itself) - least) > one.max_skew
            unlabelled |= (ground.codes == 0) & ~crowded
            crowded |= too_many[ground.codes] & ~unlabelled
        return unlabelled, crowded


class _SpreadNormalizer:
    """Sums of counts times how many domains the candidates have. Raw has, a column each, the counts, the codes of the
    domains (but of hostnames, of which each candidate is one), what the skews add, and whether the node is scored (others
    get 0)."""

    node_local = False

    def __init__(self, soft: Sequence[TopologySpreadConstraint]) -> None:
        self._soft = soft
        keys = [one.topology_key for one in soft]
        self._domain_code_column = {
            key: len(keys) + place for place, key in enumerate(key for key in keys if key != _HOSTNAME)
        }

    def candidate_stats(self, raw: Array, taking_part: Array) -> Hashable:
        scored = taking_part & np.asarray(raw[:, -1], np.bool_)
        weights = []
        for one in self._soft:
            if one.topology_key == _HOSTNAME:
                size = int(np.count_nonzero(scored))
            else:
                codes = raw[:, self._domain_code_column[one.topology_key]]
                size = int(np.count_nonzero(np.bincount(codes * scored)[1:]))
            weights.append(math.log(size + 2))
        totals = self.totals(raw, weights)
        return (
            tuple(weights),
            int(np.where(scored, totals, _RAW_SCORE_LIMIT).min()),
            int((totals * scored).max()),
        )

    def normalize(self, raw: Array, facts: Hashable) -> Array:
        assert isinstance(facts, tuple)
        weights, least, most = facts
        if most == 0:
            return np.asarray(MAX_SCORE * raw[:, -1])
        totals = np.clip(self.totals(raw, weights), least, most)
        return np.asarray(MAX_SCORE * (most + least - totals) // most * raw[:, -1])

    def totals(self, raw: Array, weights: Sequence[float]) -> Array:
        """int64, rounded half up. kube-scheduler adds each skew behind its count; a last bit decides nothing, for no sum
        lies that near to a half: a count adds multiples of a logarithm, a skew a whole number."""
        total = raw[:, -2] + 0.5
        for place, weight in enumerate(weights):
            total += raw[:, place] * weight
        return np.asarray(np.floor(total), np.int64)


class _Score(ScoreKernelBase):
    depends_on = Dependency.NODE | Dependency.CLUSTER

    def __init__(
        self, pod: Pod, soft: Sequence[TopologySpreadConstraint], *, require_all_topologies: bool
    ) -> None:
        self._require_all_topologies = require_all_topologies
        self._constraints = _ConstraintSet(pod, soft, require_all_topologies=require_all_topologies)
        self._spread_normalizer = _SpreadNormalizer(soft)
        self._node_columns_cache: tuple[int, Array] | None = None
        self.normalizer: Normalizer = self._spread_normalizer

    def raw(self, view: View) -> Array:
        constraints, grounds = self._constraints, self._constraints.domains(view)
        raw = np.empty((view.count, self._column_count()), np.int64, order="F")
        raw[:, len(grounds) :] = self._node_columns(view, grounds)[view.rows]
        for place, (one, ground) in enumerate(zip(constraints.all, grounds, strict=True)):
            if one.topology_key == _HOSTNAME:
                counts = constraints.counts_by_row(view, place)[view.rows]
            else:
                counts = constraints.counts_by_domain(view, place)[ground.codes[view.rows]]
            raw[:, place] = counts if ground.all_labelled else counts * ground.labelled[view.rows]
        return raw

    def _column_count(self) -> int:
        return sum(1 if one.topology_key == _HOSTNAME else 2 for one in self._constraints.all) + 2

    def _node_columns(self, view: View, grounds: Sequence[_ConstraintDomains]) -> Array:
        """For all rows what depends on nodes alone: the columns behind the counts."""
        version = view.topology_version
        if self._node_columns_cache is None or self._node_columns_cache[0] != version:
            constraints = self._constraints.all
            columns = [
                ground.codes
                for one, ground in zip(constraints, grounds, strict=True)
                if one.topology_key != _HOSTNAME
            ]
            skews = sum(
                (one.max_skew - 1) * ground.labelled.astype(np.int64)
                for one, ground in zip(constraints, grounds, strict=True)
            )
            whole = np.logical_and.reduce([ground.labelled for ground in grounds])
            columns += [
                np.asarray(skews),
                whole if self._require_all_topologies else np.ones(len(whole), np.bool_),
            ]
            self._node_columns_cache = version, np.asfortranarray(np.column_stack(columns).astype(np.int64))
        return self._node_columns_cache[1]

    def display_raw(self, raw: Array, facts: Hashable) -> Array:
        assert isinstance(facts, tuple)
        return self._spread_normalizer.totals(raw, facts[0]) * raw[:, -1]

    def fingerprint(self, view: View) -> Hashable:
        return self._constraints.fingerprint(view)
