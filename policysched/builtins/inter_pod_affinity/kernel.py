"""Affinity and anti-affinity between pods, over counts a row that are summed by topology domain.

Terms of placed pods that select this one come from `placed.terms_about`: terms are few and shared by replicas, so one
pod is held against terms and never against pods. Source of the formula: kubernetes v1.36
`pkg/scheduler/framework/plugins/interpodaffinity`.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.domains import domain_codes, sum_by_domain
from policysched.evaluate.columns.placed_pods import ExistingPodTerm, PodTally
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

PodCounter = PodTally | ExistingPodTerm

_RAW_SCORE_LIMIT = 2**62
_NO_TERMS = PodAffinity((), (), (), selects_itself=True)


def specialize_filter(pod: Pod, params: KernelParams, around: ClusterContext) -> FilterKernel | None:
    return _Filter(pod)


def specialize_score(pod: Pod, params: KernelParams, around: ClusterContext) -> ScoreKernel | None:
    weight = params["hard_pod_affinity_weight"]
    assert isinstance(weight, int), f"a weight of {weight!r}"
    own = pod.pod_affinity or _NO_TERMS
    if params["ignore_preferred_terms_of_existing_pods"] == "yes" and not own.preferred:
        return None
    return _Score(pod, weight)


class _Filter(FilterKernelBase):
    depends_on = Dependency.NODE | Dependency.CLUSTER

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._affinity = pod.pod_affinity or _NO_TERMS

    def refused(self, view: View) -> Array:
        masks = (
            self._violates_affinity(view),
            self._violates_anti_affinity(view),
            self._violates_existing_anti_affinity(view),
        )
        found = [mask for mask in masks if mask is not None]
        if not found:
            return np.zeros(view.count, np.bool_)
        return np.asarray(np.logical_or.reduce(found)[view.rows] if len(found) > 1 else found[0][view.rows])

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        """A node is refused for the first of them."""
        left = np.ones(view.count, np.bool_)
        found = []
        for reason, refused in (
            ("node(s) didn't match pod affinity rules", self._violates_affinity(view)),
            ("node(s) didn't match pod anti-affinity rules", self._violates_anti_affinity(view)),
            (
                "node(s) didn't satisfy existing pods anti-affinity rules",
                self._violates_existing_anti_affinity(view),
            ),
        ):
            if refused is not None:
                here = refused[view.rows]
                found.append((reason, here & left))
                left &= ~here
        return found

    def unresolvable(self, view: View) -> Array:
        far = self._violates_affinity(view)
        return np.zeros(view.count, np.bool_) if far is None else far[view.rows]

    def fingerprint(self, view: View) -> Hashable:
        own = self._affinity
        tallies = [_tally(view, terms) for terms in (own.required, *[[one] for one in own.required_anti])]
        counted: list[PodCounter] = [
            *_existing_anti_affinity_terms(view, self._pod),
            *[one for one in tallies if one is not None],
        ]
        return _fingerprint(view, counted, has_own=bool(own.required or own.required_anti))

    def _violates_affinity(self, view: View) -> Array | None:
        """Where required affinity does not hold; for all rows."""
        terms = self._affinity.required
        if not terms:
            return None
        tally, count = _tally(view, terms), view.all_rows().count
        there = np.zeros(count) if tally is None else _counts_by_row(view, tally)
        unlabelled = np.zeros(count, np.bool_)
        alone = np.zeros(count, np.bool_)
        nobody = True
        for key in dict.fromkeys(term.topology_key for term in terms):
            codes = domain_codes(view, key)
            in_domains = sum_by_domain(codes, there)
            nobody = nobody and not in_domains.any()
            unlabelled |= codes == 0
            alone |= (in_domains == 0)[codes]
        if nobody and self._affinity.selects_itself and self._namespace_in_scope(view, terms):
            return unlabelled
        return unlabelled | alone

    def _namespace_in_scope(self, view: View, terms: Iterable[PodAffinityTerm]) -> bool:
        scopes = [view.placed_pods.resolve_scope(term.pods) for term in terms]
        return all(scope is None or self._pod.namespace in scope for scope in scopes)

    def _violates_anti_affinity(self, view: View) -> Array | None:
        found: Array | None = None
        for term in self._affinity.required_anti:
            tally = _tally(view, [term])
            if tally is not None and view.row_counts(tally).rows:
                codes = domain_codes(view, term.topology_key)
                near = (sum_by_domain(codes, _counts_by_row(view, tally)) > 0)[codes]
                found = near if found is None else found | near
        return found

    def _violates_existing_anti_affinity(self, view: View) -> Array | None:
        holders = _weighted_counts_by_key(
            view, ((one.term.topology_key, one, 1) for one in _existing_anti_affinity_terms(view, self._pod))
        )
        found: Array | None = None
        for key, amounts in holders.items():
            codes = domain_codes(view, key)
            near = (sum_by_domain(codes, amounts) > 0)[codes]
            found = near if found is None else found | near
        return found


class _MinMaxNormalizer:
    """`floor(100 * (raw - min) / (max - min))` over the candidates, in float64; 0 where all are equal."""

    node_local = False

    def candidate_stats(self, raw: Array, taking_part: Array) -> Hashable:
        return int(np.where(taking_part, raw, _RAW_SCORE_LIMIT).min()), int(
            np.where(taking_part, raw, -_RAW_SCORE_LIMIT).max()
        )

    def normalize(self, raw: Array, facts: Hashable) -> Array:
        assert isinstance(facts, tuple)
        least, most = facts
        if most == least:
            return np.zeros(len(raw), np.int64)
        marks: Array = MAX_SCORE * ((raw - least) / float(most - least))
        return np.asarray(np.clip(marks, 0, MAX_SCORE), np.int64)


class _Score(ScoreKernelBase):
    """Raw: the sum of the weights of the terms that are about the node's domains."""

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
        """Where no term is about any domain. Weights that cancel each other are something else."""
        about = _weighted_counts_by_key(
            view, ((key, counted, abs(weight)) for key, counted, weight in self._weighted_terms(view))
        )
        return not any(domain_codes(view, key)[amounts > 0].any() for key, amounts in about.items())

    def fingerprint(self, view: View) -> Hashable:
        counted = [one for _, one, _ in self._weighted_terms(view)]
        return _fingerprint(view, counted, has_own=bool(self._affinity.preferred))

    def _weighted_terms(self, view: View) -> Iterator[tuple[str, PodCounter, int]]:
        """Each term with its topology key: what counts the pods that it is about or that hold it, and its weight."""
        for one in self._affinity.preferred:
            tally = _tally(view, [one.term])
            if tally is not None:
                yield one.term.topology_key, tally, one.weight
        for held in view.placed_pods.terms_selecting(self._pod.namespace, self._pod.labels):
            if held.use == "prefers":
                yield held.term.topology_key, held, held.weight
            elif held.use == "requires" and self._hard_weight:
                yield held.term.topology_key, held, self._hard_weight


def _counts_by_row(view: View, counted: PodCounter) -> Array:
    """float64, for all rows."""
    array: Array = view.row_counts(counted).array(view.placed_pods.capacity)
    return array[: view.all_rows().count]


def _tally(view: View, terms: Iterable[PodAffinityTerm]) -> PodTally | None:
    """Of the pods that all the terms select; None where there can be none, and where there are no terms."""
    placed = view.placed_pods
    meant = placed.matcher(term.pods for term in terms)
    return None if meant is None or not meant.selectors else placed.tally(meant)


def _existing_anti_affinity_terms(view: View, pod: Pod) -> list[ExistingPodTerm]:
    """The required anti-affinity terms of placed pods that select this one."""
    about = view.placed_pods.terms_selecting(pod.namespace, pod.labels)
    return [held for held in about if held.use == "refuses"]


def _weighted_counts_by_key(view: View, weighted: Iterable[tuple[str, PodCounter, int]]) -> dict[str, Array]:
    """The counts times their weights, for all rows, by topology key."""
    found: dict[str, Array] = {}
    for key, counted, weight in weighted:
        cells = view.row_counts(counted)
        if cells.rows:
            if key not in found:
                found[key] = np.zeros(view.all_rows().count)
            cells.add_to(found[key], weight, view.placed_pods.capacity)
    return found


def _fingerprint(view: View, counted: Iterable[PodCounter], *, has_own: bool) -> Hashable:
    """Nothing where no term is about the pod: then no change of the cluster matters."""
    versions = tuple([view.row_counts(one).version for one in counted])
    if not versions and not has_own:
        return ()
    placed = view.placed_pods
    return view.topology_version, placed.namespaces_version, placed.terms_version, versions
