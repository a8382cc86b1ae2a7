"""Inter-pod affinity and anti-affinity, over counts by row that are summed by topology domain.

Terms of placed pods that select this one come from `PlacedPods.terms_selecting`. Replicas share
terms, so the pod is matched with few terms and never with single pods. Terms with a topology key that
no node has are left out before anything is counted. Source of the formula: kubernetes v1.37
`pkg/scheduler/framework/plugins/interpodaffinity`.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.domains import domain_codes, sum_by_domain
from policysched.evaluate.columns.placed_pods import PlacedPods
from policysched.evaluate.columns.summed_terms import SelectingGroup
from policysched.evaluate.columns.tallies import MatchedPodCounts, PodCount
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import (
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
from policysched.model.affinity import PodAffinity, PodAffinityTerm, PodSelector, Weight
from policysched.model.pods import Pod

_RAW_SCORE_LIMIT = 2**62
_TALLIES_PER_POD_MAX = 32  # a pod with more terms has no tallies
_NO_TERMS = PodAffinity((), (), (), selects_itself=True)


def specialize_filter(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> FilterKernel | None:
    return _Filter(pod)


def specialize_score(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> ScoreKernel | None:
    weight = params["hard_pod_affinity_weight"]
    assert isinstance(weight, int), f"hard_pod_affinity_weight is {weight!r}"
    own_terms = pod.pod_affinity or _NO_TERMS
    if params["ignore_preferred_terms_of_existing_pods"] == "yes" and not own_terms.preferred:
        return None
    return _Score(pod, weight)


class _Filter(FilterKernelBase):
    depends_on = Dependency.NODE | Dependency.CLUSTER

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._affinity = pod.pod_affinity or _NO_TERMS
        self._own_anti = _OwnTerms([(term, 1) for term in self._affinity.required_anti], if_unknown=True)
        self._required_keys = tuple(dict.fromkeys(term.topology_key for term in self._affinity.required))
        self._tallied: tuple[PlacedPods, int, MatchedPodCounts | None] | None = None
        self._base: View | None = None  # see `alone`

    def rejected(self, view: View) -> Array:
        masks = (
            self._violates_affinity(view),
            self._violates_anti_affinity(view),
            self._violates_existing_anti_affinity(view),
        )
        violations = [mask for mask in masks if mask is not None]
        if not violations:
            return np.zeros(view.count, np.bool_)
        return np.asarray(
            np.logical_or.reduce(violations)[view.rows] if len(violations) > 1 else violations[0][view.rows]
        )

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        """A node is rejected for the first reason that applies."""
        unexplained = np.ones(view.count, np.bool_)
        reasons = []
        for reason, rejected in (
            ("node(s) didn't match pod affinity rules", self._violates_affinity(view)),
            ("node(s) didn't match pod anti-affinity rules", self._violates_anti_affinity(view)),
            (
                "node(s) didn't satisfy existing pods anti-affinity rules",
                self._violates_existing_anti_affinity(view),
            ),
        ):
            if rejected is not None:
                violated = rejected[view.rows]
                reasons.append((reason, violated & unexplained))
                unexplained &= ~violated
        return reasons

    def unresolvable(self, view: View) -> Array:
        violated = self._violates_affinity(view)
        return np.zeros(view.count, np.bool_) if violated is None else violated[view.rows]

    def fingerprint(self, view: View) -> Hashable:
        own_affinity = self._affinity
        counted: list[PodCount] = [*_existing_anti_affinity_groups(view, self._pod)]
        if own_affinity.required and not self._lacks_topology_key(view):
            tally = self._tally_of_required(view)
            counted += [] if tally is None else [tally]
        has_own = bool(own_affinity.required or own_affinity.required_anti)
        return _fingerprint(view, counted, self._own_anti, has_own=has_own)

    def alone(self, view: View, base: View) -> FilterKernel | None:
        """Pods that are added to a node can only add a violation of anti-affinity there, or satisfy required affinity there."""
        if super().alone(view, base) is not None:
            return self
        kernel = _Filter(self._pod)
        kernel._base = base
        return kernel

    def _lacks_topology_key(self, view: View) -> bool:
        """Whether required affinity names a topology key that no node has."""
        return not all(map(view.has_label_key, self._required_keys))

    def _tally_of_required(self, view: View) -> MatchedPodCounts | None:
        """Cached, since it is read several times for each attempt and for each node with nominated pods: to find it takes a
        millisecond for hundreds of terms."""
        placed, tallied = view.placed_pods, self._tallied
        if tallied is None or tallied[0] is not placed or tallied[1] != placed.namespaces_version:
            tally = _tally(view, self._affinity.required)
            self._tallied = tallied = placed, placed.namespaces_version, tally
        return tallied[2]

    def _violates_affinity(self, view: View) -> Array | None:
        """bool for all rows: where required affinity does not hold. None: it holds on all."""
        violated = self._violates_required(view if self._base is None else self._base)
        if self._base is None or violated is None or self._lacks_topology_key(view):
            return violated
        tally = self._tally_of_required(view)
        if tally is None:
            return violated
        # A pod that all terms select is in each domain of its node, and so satisfies each there.
        added = _counts_by_row(view, tally) > _counts_by_row(self._base, tally)
        has_all_keys = np.logical_and.reduce([domain_codes(view, key) > 0 for key in self._required_keys])
        return np.asarray(violated & ~(added & has_all_keys))

    def _violates_required(self, view: View) -> Array | None:
        terms = self._affinity.required
        if not terms:
            return None
        if self._lacks_topology_key(view):
            return np.ones(view.all_rows().count, np.bool_)
        tally, count = self._tally_of_required(view), view.all_rows().count
        matching_pods = np.zeros(count) if tally is None else _counts_by_row(view, tally)
        unlabelled = np.zeros(count, np.bool_)
        unmatched = np.zeros(count, np.bool_)
        no_match = True
        for key in self._required_keys:
            codes = domain_codes(view, key)
            in_domains = sum_by_domain(codes, matching_pods)
            no_match = no_match and not in_domains.any()
            unlabelled |= codes == 0
            unmatched |= (in_domains == 0)[codes]
        if no_match and self._affinity.selects_itself and self._namespace_in_scope(view, terms):
            return unlabelled
        return unlabelled | unmatched

    def _namespace_in_scope(self, view: View, terms: Iterable[PodAffinityTerm]) -> bool:
        scopes = [view.placed_pods.resolve_scope(term.pods) for term in terms]
        return all(scope is None or self._pod.namespace in scope for scope in scopes)

    def _violates_anti_affinity(self, view: View) -> Array | None:
        return self._any_in_domain(view, self._own_anti.counts_by_key)

    def _violates_existing_anti_affinity(self, view: View) -> Array | None:
        groups = _existing_anti_affinity_groups(view, self._pod)

        def counts_by_key(of: View) -> dict[str, Array]:
            counts: dict[str, Array] = {}
            _add_counts(of, ((group.topology_key, group, 1) for group in groups), counts)
            return counts

        return self._any_in_domain(view, counts_by_key)

    def _any_in_domain(self, view: View, counts_by_key: Callable[[View], dict[str, Array]]) -> Array | None:
        if self._base is None:
            return _any_in_domain(view, counts_by_key(view))
        counts, before = counts_by_key(view), counts_by_key(self._base)
        violated = _any_in_domain(view, before)
        for key, amounts in counts.items():
            added = (amounts > before.get(key, 0)) & (domain_codes(view, key) > 0)
            violated = added if violated is None else violated | added
        return violated


class _OwnTerms:
    """Terms of the pod, each with a weight. The pods that a term selects are counted in a tally, which other pods with
    the term share and placements keep up to date. Many terms are counted all at once, again after each change: thousands
    of tallies would make every placement of any pod expensive. `if_unknown`: they select pods that may have the labels for it."""

    def __init__(self, weighted: Sequence[tuple[PodAffinityTerm, int]], *, if_unknown: bool = False) -> None:
        self._weighted = weighted
        self._if_unknown = if_unknown
        self.is_many = len(weighted) > _TALLIES_PER_POD_MAX

    def counts_by_key(self, view: View, *, magnitudes: bool = False) -> dict[str, Array]:
        """float64 for all rows, by topology key: the pods that each term selects, times its weight (or its absolute
        value). Without the topology keys that no node has."""
        counts_by_key: dict[str, Array] = {}
        if not self.is_many:
            tallies = self._tallies(view)
            _add_counts(
                view,
                ((key, tally, abs(weight) if magnitudes else weight) for key, tally, weight in tallies),
                counts_by_key,
            )
            return counts_by_key
        selectors: dict[str, list[tuple[PodSelector, int]]] = {}
        for term, weight in self._weighted:
            if view.has_label_key(term.topology_key):
                of_key = selectors.setdefault(term.topology_key, [])
                of_key.append((term.pods, abs(weight) if magnitudes else weight))
        return {
            key: view.selected_weights(of_key, if_unknown=self._if_unknown)
            for key, of_key in selectors.items()
        }

    def versions(self, view: View) -> tuple[Hashable, ...]:
        """Values that change with the counts."""
        if self.is_many:
            return (view.pods_version(),)
        return tuple([view.row_counts(tally).version for _, tally, _ in self._tallies(view)])

    def _tallies(self, view: View) -> Iterator[tuple[str, MatchedPodCounts, int]]:
        for term, weight in self._weighted:
            has_key = view.has_label_key(term.topology_key)
            tally = _tally(view, [term], if_unknown=self._if_unknown) if has_key else None
            if tally is not None:
                yield term.topology_key, tally, weight


def _any_in_domain(view: View, counts_by_key: Mapping[str, Array]) -> Array | None:
    """The rows with a counted pod in their domain; for all rows. None: nothing is counted."""
    violated: Array | None = None
    for key, amounts in counts_by_key.items():
        codes = domain_codes(view, key)
        in_domain = (sum_by_domain(codes, amounts) > 0)[codes]
        violated = in_domain if violated is None else violated | in_domain
    return violated


class _MinMaxNormalizer:
    """`floor(100 * (raw - min) / (max - min))` over the candidates, in float64; 0 where all are equal."""

    node_local = False

    def candidate_stats(self, raw: Array, scored: Array) -> Hashable:
        return int(np.where(scored, raw, _RAW_SCORE_LIMIT).min()), int(
            np.where(scored, raw, -_RAW_SCORE_LIMIT).max()
        )

    def normalize(self, raw: Array, stats: Hashable) -> Array:
        assert isinstance(stats, tuple)
        minimum, maximum = stats
        if maximum == minimum:
            return np.zeros(len(raw), np.int64)
        scores: Array = MAX_SCORE * ((raw - minimum) / float(maximum - minimum))
        return np.asarray(np.clip(scores, 0, MAX_SCORE), np.int64)


class _Score(ScoreKernelBase):
    """Raw: the sum of the weights of the terms that match pods in the node's domains."""

    depends_on = Dependency.NODE | Dependency.CLUSTER
    normalizer: Normalizer = _MinMaxNormalizer()

    def __init__(self, pod: Pod, hard_weight: int) -> None:
        self._pod = pod
        self._hard_weight = hard_weight
        preferred = (pod.pod_affinity or _NO_TERMS).preferred
        self._own = _OwnTerms([(preference.term, preference.weight) for preference in preferred])
        self._has_own = bool(preferred)

    def raw(self, view: View) -> Array:
        total = np.zeros(view.count)
        counts_by_key = self._own.counts_by_key(view)
        existing = ((key, group, weight.total) for key, group, weight in self._existing_terms(view))
        _add_counts(view, existing, counts_by_key)
        for key, amounts in counts_by_key.items():
            codes = domain_codes(view, key)
            total += sum_by_domain(codes, amounts)[codes[view.rows]]
        return total.astype(np.int64)

    def skip(self, view: View) -> bool:
        """Whether no term matches in any domain. Weights that cancel each other are still scored."""
        counts_by_key = self._own.counts_by_key(view, magnitudes=True)
        existing = ((key, group, weight.magnitude) for key, group, weight in self._existing_terms(view))
        _add_counts(view, existing, counts_by_key)
        return not any(domain_codes(view, key)[amounts > 0].any() for key, amounts in counts_by_key.items())

    def fingerprint(self, view: View) -> Hashable:
        counted = [group for _, group, _ in self._existing_terms(view)]
        return _fingerprint(view, counted, self._own, has_own=self._has_own)

    def _existing_terms(self, view: View) -> Iterator[tuple[str, SelectingGroup, Weight]]:
        """The groups of placed pods' terms that select the pod, with the weight of each."""
        for group, weight in view.placed_pods.terms_selecting(self._pod.namespace, self._pod.labels):
            if group.use == "prefers":
                yield group.topology_key, group, weight
            elif group.use == "requires" and self._hard_weight:
                hard_weight = self._hard_weight * weight.total
                yield group.topology_key, group, Weight(hard_weight, hard_weight)


def _counts_by_row(view: View, counted: PodCount) -> Array:
    """float64, for all rows."""
    array: Array = view.row_counts(counted).array(view.placed_pods.capacity)
    return array[: view.all_rows().count]


def _tally(
    view: View, terms: Iterable[PodAffinityTerm], *, if_unknown: bool = False
) -> MatchedPodCounts | None:
    """The tally of the pods that all the terms select; None without terms, and where no pod can match. `if_unknown`: see
    `PodMatcher`."""
    placed = view.placed_pods
    matcher = placed.matcher((term.pods for term in terms), if_unknown=if_unknown)
    return None if matcher is None or not matcher.selectors else placed.tally(matcher)


def _existing_anti_affinity_groups(view: View, pod: Pod) -> list[SelectingGroup]:
    """The groups of required anti-affinity terms of placed pods that select this pod."""
    groups = view.placed_pods.terms_selecting(pod.namespace, pod.labels)
    return [group for group, _ in groups if group.use == "rejects"]


def _add_counts(
    view: View, weighted: Iterable[tuple[str, PodCount, int]], counts_by_key: dict[str, Array]
) -> None:
    """Add the counts times their weights, for all rows, by topology key."""
    for key, counted, weight in weighted:
        cells = view.row_counts(counted)
        if not cells.is_empty:
            if key not in counts_by_key:
                counts_by_key[key] = np.zeros(view.all_rows().count)
            cells.add_to(counts_by_key[key], weight, view.placed_pods.capacity)


def _fingerprint(view: View, counted: Iterable[PodCount], own_terms: _OwnTerms, *, has_own: bool) -> Hashable:
    """Empty if no term concerns the pod: no change of the cluster matters then."""
    versions = (*[view.row_counts(counter).version for counter in counted], *own_terms.versions(view))
    if not versions and not has_own:
        return ()
    placed = view.placed_pods
    return view.topology_version, placed.namespaces_version, placed.terms.version, versions
