"""Inter-pod affinity and anti-affinity, over counts by row that are summed by topology domain.

Terms of placed pods that select this one come from `PlacedPods.terms_selecting`. Replicas share
terms, so the pod is matched with few terms and never with single pods. Source of the formula:
kubernetes v1.36 `pkg/scheduler/framework/plugins/interpodaffinity`.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.domains import domain_codes, sum_by_domain
from policysched.evaluate.columns.placed_pods import ExistingPodTerm, MatchedPodCounts
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
from policysched.model.affinity import PodAffinity, PodAffinityTerm
from policysched.model.pods import Pod

PodCounter = MatchedPodCounts | ExistingPodTerm

_RAW_SCORE_LIMIT = 2**62
_NO_TERMS = PodAffinity((), (), (), selects_itself=True)


def specialize_filter(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> FilterKernel | None:
    return _Filter(pod)


def specialize_score(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> ScoreKernel | None:
    weight = params["hard_pod_affinity_weight"]
    assert isinstance(weight, int), f"hard_pod_affinity_weight is {weight!r}"
    own = pod.pod_affinity or _NO_TERMS
    if params["ignore_preferred_terms_of_existing_pods"] == "yes" and not own.preferred:
        return None
    return _Score(pod, weight)


class _Filter(FilterKernelBase):
    depends_on = Dependency.NODE | Dependency.CLUSTER

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._affinity = pod.pod_affinity or _NO_TERMS

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
        """A node is rejected for the first that applies."""
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
        own = self._affinity
        tallies = [_tally(view, terms) for terms in (own.required, *[[term] for term in own.required_anti])]
        counted: list[PodCounter] = [
            *_existing_anti_affinity_terms(view, self._pod),
            *[tally for tally in tallies if tally is not None],
        ]
        return _fingerprint(view, counted, has_own=bool(own.required or own.required_anti))

    def _violates_affinity(self, view: View) -> Array | None:
        """The rows where required affinity does not hold; for all rows."""
        terms = self._affinity.required
        if not terms:
            return None
        tally, count = _tally(view, terms), view.all_rows().count
        matching_pods = np.zeros(count) if tally is None else _counts_by_row(view, tally)
        unlabelled = np.zeros(count, np.bool_)
        unmatched = np.zeros(count, np.bool_)
        no_match = True
        for key in dict.fromkeys(term.topology_key for term in terms):
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
        violated: Array | None = None
        for term in self._affinity.required_anti:
            tally = _tally(view, [term])
            if tally is not None and view.row_counts(tally).rows:
                codes = domain_codes(view, term.topology_key)
                in_domain = (sum_by_domain(codes, _counts_by_row(view, tally)) > 0)[codes]
                violated = in_domain if violated is None else violated | in_domain
        return violated

    def _violates_existing_anti_affinity(self, view: View) -> Array | None:
        holders = _weighted_counts_by_key(
            view,
            ((term.term.topology_key, term, 1) for term in _existing_anti_affinity_terms(view, self._pod)),
        )
        violated: Array | None = None
        for key, amounts in holders.items():
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
        self._affinity = pod.pod_affinity or _NO_TERMS

    def raw(self, view: View) -> Array:
        total = np.zeros(view.count)
        for key, amounts in _weighted_counts_by_key(view, self._weighted_terms(view)).items():
            codes = domain_codes(view, key)
            total += sum_by_domain(codes, amounts)[codes[view.rows]]
        return total.astype(np.int64)

    def skip(self, view: View) -> bool:
        """Whether no term matches in any domain. Weights that cancel each other are still scored."""
        weights_by_key = _weighted_counts_by_key(
            view, ((key, counted, abs(weight)) for key, counted, weight in self._weighted_terms(view))
        )
        return not any(domain_codes(view, key)[amounts > 0].any() for key, amounts in weights_by_key.items())

    def fingerprint(self, view: View) -> Hashable:
        counted = [counter for _, counter, _ in self._weighted_terms(view)]
        return _fingerprint(view, counted, has_own=bool(self._affinity.preferred))

    def _weighted_terms(self, view: View) -> Iterator[tuple[str, PodCounter, int]]:
        """Each term as topology key, the counter of the pods that match or hold it, and weight."""
        for preferred in self._affinity.preferred:
            tally = _tally(view, [preferred.term])
            if tally is not None:
                yield preferred.term.topology_key, tally, preferred.weight
        for term in view.placed_pods.terms_selecting(self._pod.namespace, self._pod.labels):
            if term.use == "prefers":
                yield term.term.topology_key, term, term.weight
            elif term.use == "requires" and self._hard_weight:
                yield term.term.topology_key, term, self._hard_weight


def _counts_by_row(view: View, counted: PodCounter) -> Array:
    """float64, for all rows."""
    array: Array = view.row_counts(counted).array(view.placed_pods.capacity)
    return array[: view.all_rows().count]


def _tally(view: View, terms: Iterable[PodAffinityTerm]) -> MatchedPodCounts | None:
    """Of the pods that all the terms select; None without terms, and where no pod can match."""
    placed = view.placed_pods
    matcher = placed.matcher(term.pods for term in terms)
    return None if matcher is None or not matcher.selectors else placed.tally(matcher)


def _existing_anti_affinity_terms(view: View, pod: Pod) -> list[ExistingPodTerm]:
    """The required anti-affinity terms of placed pods that select this one."""
    terms = view.placed_pods.terms_selecting(pod.namespace, pod.labels)
    return [term for term in terms if term.use == "rejects"]


def _weighted_counts_by_key(view: View, weighted: Iterable[tuple[str, PodCounter, int]]) -> dict[str, Array]:
    """The counts times their weights, for all rows, by topology key."""
    counts_by_key: dict[str, Array] = {}
    for key, counted, weight in weighted:
        cells = view.row_counts(counted)
        if cells.rows:
            if key not in counts_by_key:
                counts_by_key[key] = np.zeros(view.all_rows().count)
            cells.add_to(counts_by_key[key], weight, view.placed_pods.capacity)
    return counts_by_key


def _fingerprint(view: View, counted: Iterable[PodCounter], *, has_own: bool) -> Hashable:
    """Empty where no term concerns the pod: no change of the cluster matters then."""
    versions = tuple([view.row_counts(counter).version for counter in counted])
    if not versions and not has_own:
        return ()
    placed = view.placed_pods
    return view.topology_version, placed.namespaces_version, placed.terms_version, versions
