"""Topology spread constraints, over counts by row that are summed by domain.

What depends on nodes alone (which rows count, the number of domains) is cached until a node
changes. Source of the formula: kubernetes v1.37
`pkg/scheduler/framework/plugins/podtopologyspread`.
"""

import math
from collections.abc import Hashable, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from policysched.builtins.node_affinity import kernel as node_affinity
from policysched.builtins.taint_toleration import kernel as taint_toleration
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.domains import domain_codes, sum_by_domain
from policysched.evaluate.columns.interner import Interner
from policysched.evaluate.columns.pod_classes import PodMatcher
from policysched.evaluate.columns.tallies import MatchedPodCounts
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


def specialize_filter(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> FilterKernel | None:
    hard = (
        [constraint for constraint in pod.spread if constraint.hard]
        if pod.spread
        else _default_constraints(params, cluster_context, hard=True)
    )
    return _Filter(pod, hard) if hard else None


def specialize_score(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> ScoreKernel | None:
    soft = (
        [constraint for constraint in pod.spread if not constraint.hard]
        if pod.spread
        else _default_constraints(params, cluster_context, hard=False)
    )
    is_system_default = not pod.spread and params["default_constraints"] == "system"
    return _Score(pod, soft, require_all_topologies=not is_system_default) if soft else None


def _default_constraints(
    params: KernelParams, cluster_context: ClusterContext, *, hard: bool
) -> list[TopologySpreadConstraint]:
    """The constraints for a pod that has none of its own."""
    default_constraints, selector_group = params["default_constraints"], cluster_context.selector_group
    if selector_group is None or default_constraints == "none":
        return []
    skews = _SYSTEM_DEFAULT_CONSTRAINTS if default_constraints == "system" else default_constraints
    assert isinstance(skews, tuple), f"default_constraints is {default_constraints!r}"
    return [
        TopologySpreadConstraint(
            str(key),
            int(skew),
            min_domains=1,
            hard=hard,
            label_selector=selector_group.label_selector,
            honors_affinity=True,
            honors_taints=False,
            selects_itself=selector_group.selects_itself,
        )
        for key, skew in skews
    ]


@dataclass(frozen=True, slots=True)
class _ConstraintDomains:
    """One constraint over all rows: the domain code of each row, which rows count (0.0 or 1.0;
    None: all rows with a domain), which codes have a counted row, and which rows have the label.
    Where not all topology keys are required, rows without the label are in the domain of the
    empty value, as in kube-scheduler.
    """

    codes: Array
    counted: Array | None
    has_counted_rows: Array
    labelled: Array
    all_labelled: bool

    def of_counted_rows(self, amounts: Array) -> Array:
        """The amounts, 0 for rows that do not count. Rows without a domain may keep theirs: no sum by domain includes them."""
        return amounts if self.counted is None else amounts * self.counted


class _ConstraintSet:
    """The constraints of one pod that are evaluated together."""

    def __init__(
        self,
        pod: Pod,
        constraints: Sequence[TopologySpreadConstraint],
        *,
        require_all_topologies: bool = True,
    ) -> None:
        self.all = constraints
        self._require_all_topologies = require_all_topologies
        self._pod_selectors = [_pod_selector(pod, constraint) for constraint in constraints]
        self._affinity = node_affinity.specialize_filter(pod, {}, EMPTY_CLUSTER_CONTEXT)
        self._taints = taint_toleration.specialize_filter(pod, {}, EMPTY_CLUSTER_CONTEXT)
        self._domains: tuple[int, list[_ConstraintDomains]] | None = None
        self._lacks_key: tuple[int, bool] | None = None

    def lacks_topology_key(self, view: View) -> bool:
        """Whether all topology keys are required and one of them is on no node: then no row counts."""
        version = view.topology_version
        if self._lacks_key is None or self._lacks_key[0] != version:
            keys = (constraint.topology_key for constraint in self.all)
            lacks = self._require_all_topologies and not all(map(view.has_label_key, keys))
            self._lacks_key = version, lacks
        return self._lacks_key[1]

    def domains(self, view: View) -> list[_ConstraintDomains]:
        version = view.topology_version
        if self._domains is None or self._domains[0] != version:
            self._domains = version, self._build_domains(view.all_rows())
        return self._domains[1]

    def counts_by_row(self, view: View, index: int) -> Array:
        """float64, for all rows: the pods that the constraint at `index` counts."""
        tally, count = self._tally(view, index), view.all_rows().count
        if tally is None:
            return np.zeros(count)
        return view.row_counts(tally).array(view.placed_pods.capacity)[:count]

    def counts_by_domain(self, view: View, index: int) -> Array:
        """float64 by code: the counted pods."""
        constraint_domains, amounts = self.domains(view)[index], self.counts_by_row(view, index)
        return sum_by_domain(constraint_domains.codes, constraint_domains.of_counted_rows(amounts))

    def fingerprint(self, view: View) -> Hashable:
        if self.lacks_topology_key(view):
            return view.topology_version, None
        tallies = [self._tally(view, index) for index in range(len(self.all))]
        return view.topology_version, tuple(
            [view.row_counts(tally).version for tally in tallies if tally is not None]
        )

    def _tally(self, view: View, index: int) -> MatchedPodCounts | None:
        matcher = self._pod_selectors[index]
        return None if matcher is None else view.placed_pods.tally(matcher)

    def _build_domains(self, view: View) -> list[_ConstraintDomains]:
        codes = [domain_codes(view, constraint.topology_key) for constraint in self.all]
        labelled = [row_codes > 0 for row_codes in codes]
        has_all_keys = np.logical_and.reduce(labelled)
        if not self._require_all_topologies:
            has_all_keys = np.ones(view.count, np.bool_)
            nameless = [_empty_value_domain(view, constraint.topology_key) for constraint in self.all]
            codes = [
                np.where(codes_by_row > 0, codes_by_row, other)
                for codes_by_row, other in zip(codes, nameless, strict=True)
            ]
        affinity_rejects = None if self._affinity is None else self._affinity.rejected(view)
        taints_reject = None if self._taints is None else self._taints.rejected(view)
        constraint_domains = []
        for constraint, of_rows, labelled_rows in zip(self.all, codes, labelled, strict=True):
            counted = has_all_keys
            if constraint.honors_affinity and affinity_rejects is not None:
                counted = counted & ~affinity_rejects
            if constraint.honors_taints and taints_reject is not None:
                counted = counted & ~taints_reject
            has_counted_rows = np.bincount(of_rows, weights=counted) > 0
            everywhere = np.array_equal(counted, of_rows > 0)
            constraint_domains.append(
                _ConstraintDomains(
                    of_rows.copy(),
                    None if everywhere else counted.astype(np.float64),
                    has_counted_rows,
                    labelled_rows,
                    bool(labelled_rows.all()),
                )
            )
        return constraint_domains


def _empty_value_domain(view: View, key: str) -> int:
    """The code of the domain of the empty value."""
    return 1 + view.codes.domains.setdefault(key, Interner()).code("")


def _pod_selector(pod: Pod, constraint: TopologySpreadConstraint) -> PodMatcher | None:
    """A selector without requirements counts nothing, like an absent one."""
    if constraint.label_selector is None or not constraint.label_selector.requirements:
        return None
    return PodMatcher(((frozenset((pod.namespace,)), constraint.label_selector),), exclude_terminating=True)


class _Filter(FilterKernelBase):
    depends_on = Dependency.NODE | Dependency.CLUSTER

    def __init__(self, pod: Pod, hard: Sequence[TopologySpreadConstraint]) -> None:
        self._constraints = _ConstraintSet(pod, hard)
        self._base: View | None = None  # see `alone`

    def alone(self, view: View, base: View) -> FilterKernel | None:
        if super().alone(view, base) is not None:
            return self
        kernel = copy(self)
        kernel._base = base
        return kernel

    def rejected(self, view: View) -> Array:
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
        """For all rows: which lack a label, and which have too many pods. The first constraint that
        rejects decides.
        """
        count = view.all_rows().count
        unlabelled, crowded = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        if self._constraints.lacks_topology_key(view):
            return ~unlabelled, crowded
        domains_of_constraints = self._constraints.domains(view)
        for index, (constraint, constraint_domains) in enumerate(
            zip(self._constraints.all, domains_of_constraints, strict=True)
        ):
            in_domain, minimum = self._counts_and_minimum(view, index, constraint_domains)
            if np.count_nonzero(constraint_domains.has_counted_rows) < constraint.min_domains:
                minimum = np.zeros(1)
            too_many = in_domain + (int(constraint.selects_itself) - minimum) > constraint.max_skew
            unlabelled |= (constraint_domains.codes == 0) & ~crowded
            crowded |= too_many & ~unlabelled
        return unlabelled, crowded

    def _counts_and_minimum(
        self, view: View, index: int, constraint_domains: _ConstraintDomains
    ) -> tuple[Array, Array]:
        """For all rows: the counted pods in the domain of the row, and in the domain with the fewest (one value if it is the same
        for all rows)."""
        codes, constraints = constraint_domains.codes, self._constraints
        by_domain = constraints.counts_by_domain(self._base or view, index)
        counts = by_domain[constraint_domains.has_counted_rows]
        minimum = np.full(1, counts.min(initial=math.inf))
        if self._base is None:
            return by_domain[codes], minimum
        added = constraints.counts_by_row(view, index) - constraints.counts_by_row(self._base, index)
        in_domain = by_domain[codes] + constraint_domains.of_counted_rows(added)
        if np.count_nonzero(counts == minimum) == 1:
            # Pods added to the only domain with the fewest raise the minimum, at most to the second lowest count.
            second = counts[counts > minimum].min(initial=math.inf)
            lowest = constraint_domains.has_counted_rows[codes] & (by_domain[codes] == minimum)
            minimum = np.where(lowest, np.minimum(in_domain, second), minimum)
        return in_domain, minimum


class _SpreadNormalizer:
    """Sums of counts, weighted by the number of domains of the candidates. The columns of raw are:
    the counts, the domain codes (not for hostnames, where each candidate is its own domain), the
    sum of the skews, and whether the node is scored (others get 0).
    """

    node_local = False

    def __init__(self, soft: Sequence[TopologySpreadConstraint]) -> None:
        self._soft = soft
        keys = [constraint.topology_key for constraint in soft]
        self._domain_code_column = {
            key: len(keys) + index for index, key in enumerate(key for key in keys if key != _HOSTNAME)
        }

    def candidate_stats(self, raw: Array, scored: Array) -> Hashable:
        scored = scored & np.asarray(raw[:, -1], np.bool_)
        if not scored.any():
            return (), _RAW_SCORE_LIMIT, 0
        weights = []
        for constraint in self._soft:
            if constraint.topology_key == _HOSTNAME:
                size = int(np.count_nonzero(scored))
            else:
                codes = raw[:, self._domain_code_column[constraint.topology_key]]
                size = int(np.count_nonzero(np.bincount(codes * scored)[1:]))
            weights.append(math.log(size + 2))
        totals = self.totals(raw, weights)
        return (
            tuple(weights),
            int(np.where(scored, totals, _RAW_SCORE_LIMIT).min()),
            int((totals * scored).max()),
        )

    def normalize(self, raw: Array, stats: Hashable) -> Array:
        assert isinstance(stats, tuple)
        weights, minimum, maximum = stats
        if maximum == 0:
            return np.asarray(MAX_SCORE * raw[:, -1])
        totals = np.clip(self.totals(raw, weights), minimum, maximum)
        return np.asarray(MAX_SCORE * (maximum + minimum - totals) // maximum * raw[:, -1])

    def totals(self, raw: Array, weights: Sequence[float]) -> Array:
        """int64, rounded half up. kube-scheduler adds each skew after its count. The last bit
        cannot decide: a count adds multiples of a logarithm and a skew an integer, so no sum is
        that close to a half.
        """
        total = raw[:, -2] + 0.5
        for index, weight in enumerate(weights):
            total += raw[:, index] * weight
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
        if self._constraints.lacks_topology_key(view):
            return np.zeros((view.count, 2), np.int64)  # no node is scored
        constraints, domains_of_constraints = self._constraints, self._constraints.domains(view)
        raw = np.empty((view.count, self._column_count()), np.int64, order="F")
        raw[:, len(domains_of_constraints) :] = self._node_columns(view, domains_of_constraints)[view.rows]
        for index, (constraint, constraint_domains) in enumerate(
            zip(constraints.all, domains_of_constraints, strict=True)
        ):
            if constraint.topology_key == _HOSTNAME:
                counts = constraints.counts_by_row(view, index)[view.rows]
            else:
                counts = constraints.counts_by_domain(view, index)[constraint_domains.codes[view.rows]]
            raw[:, index] = (
                counts if constraint_domains.all_labelled else counts * constraint_domains.labelled[view.rows]
            )
        return raw

    def _column_count(self) -> int:
        return (
            sum(1 if constraint.topology_key == _HOSTNAME else 2 for constraint in self._constraints.all) + 2
        )

    def _node_columns(self, view: View, domains_of_constraints: Sequence[_ConstraintDomains]) -> Array:
        """For all rows the columns after the counts, which depend on nodes alone."""
        version = view.topology_version
        if self._node_columns_cache is None or self._node_columns_cache[0] != version:
            constraints = self._constraints.all
            columns = [
                constraint_domains.codes
                for constraint, constraint_domains in zip(constraints, domains_of_constraints, strict=True)
                if constraint.topology_key != _HOSTNAME
            ]
            skews = sum(
                (constraint.max_skew - 1) * constraint_domains.labelled.astype(np.int64)
                for constraint, constraint_domains in zip(constraints, domains_of_constraints, strict=True)
            )
            has_all_keys = np.logical_and.reduce(
                [constraint_domains.labelled for constraint_domains in domains_of_constraints]
            )
            columns += [
                np.asarray(skews),
                has_all_keys if self._require_all_topologies else np.ones(len(has_all_keys), np.bool_),
            ]
            self._node_columns_cache = version, np.asfortranarray(np.column_stack(columns).astype(np.int64))
        return self._node_columns_cache[1]

    def display_raw(self, raw: Array, stats: Hashable) -> Array:
        assert isinstance(stats, tuple)
        return self._spread_normalizer.totals(raw, stats[0]) * raw[:, -1]

    def fingerprint(self, view: View) -> Hashable:
        return self._constraints.fingerprint(view)
