"""Node affinity, pod affinity and topology spread constraints of a pod."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary, ref

from policysched.model.selector_columns import SelectorColumns
from policysched.model.selectors import LabelSelector, NodeSelectorTerm

TermUse = Literal["rejects", "requires", "prefers"]


@dataclass(frozen=True, slots=True)
class PreferredSchedulingTerm:
    weight: int
    term: NodeSelectorTerm


@dataclass(frozen=True, slots=True)
class NodeAffinity:
    """One of the `required` terms must match (None: no requirement)."""

    required: tuple[NodeSelectorTerm, ...] | None
    preferred: tuple[PreferredSchedulingTerm, ...]


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Pods that `label_selector` matches (None: none), in `namespaces` and in the namespaces that `namespace_selector`
    matches (None: no others; without requirements: all)."""

    namespaces: tuple[str, ...]
    namespace_selector: LabelSelector | None
    label_selector: LabelSelector | None


@dataclass(frozen=True, slots=True)
class PodAffinityTerm:
    """Pods, and the node label that defines the topology domains. The selector includes the requirements of
    matchLabelKeys and mismatchLabelKeys, as the API server stores it."""

    pods: PodSelector
    topology_key: str


@dataclass(frozen=True, slots=True)
class WeightedPodAffinityTerm:
    """A preferred term; the weight is positive for affinity and negative for anti-affinity."""

    weight: int
    term: PodAffinityTerm


class Weight(NamedTuple):
    """The sum of weights of terms (negative for anti-affinity), and of their absolute values. A
    required term has weight 1."""

    total: int
    magnitude: int

    def plus(self, other: "Weight") -> "Weight":
        return Weight(self.total + other.total, self.magnitude + other.magnitude)


TermScope = tuple[tuple[str, ...], LabelSelector | None]
"""Where a term selects pods: `PodSelector.namespaces` and `.namespace_selector`."""
_KeysByNamespace = dict[str | None, set[str]]
_FEW_NAMESPACES = 16
"""With more named namespaces, a set of terms counts as selecting pods of any: there would be too many pairs of name and key."""


@dataclass(slots=True)
class TermColumns:
    """The terms that select anything, by number: selector, weight, and position of the scope in `scopes` (all distinct)."""

    selectors: SelectorColumns
    totals: "array[int]"
    magnitudes: "array[int]"
    term_scopes: "array[int]"
    scopes: Sequence[TermScope]


class TermSet:
    """A pod's terms with one use and topology key. They reject (required anti-affinity), require or prefer the pods that they
    select. `weights`: the sum for each selector. The hash is computed once: there can be thousands of terms."""

    __slots__ = ("_columns", "_hash", "_selected_keys", "topology_key", "use", "weights")

    def __init__(self, use: TermUse, topology_key: str, weights: Mapping[PodSelector, Weight]) -> None:
        self.use = use
        self.topology_key = topology_key
        self.weights = tuple(weights.items())
        self._hash = hash((use, topology_key, self.weights))
        self._selected_keys: _KeysByNamespace | None = None
        self._columns: TermColumns | None = None

    @property
    def selected_keys(self) -> "_KeysByNamespace":
        """The label keys that the terms select by, for each namespace of pods that they may select (None: any)."""
        if self._selected_keys is None:
            keys: _KeysByNamespace = {}
            for selector, _ in self.weights:
                if selector.label_selector is None:
                    continue  # selects nothing
                selected = [requirement.key for requirement in selector.label_selector.requirements]
                is_few = len(keys.keys() | selector.namespaces) <= _FEW_NAMESPACES
                named = selector.namespaces if is_few and selector.namespace_selector is None else (None,)
                for namespace in named:
                    keys.setdefault(namespace, set()).update(selected)
            self._selected_keys = keys
        return self._selected_keys

    @property
    def is_large(self) -> bool:
        """Whether it has many terms, or one that names many values or namespaces."""
        return len(self.weights) > _FEW_TERMS or any(
            len(each) > _FEW_VALUES
            for selector, _ in self.weights
            for each in (selector.namespaces, *_values(selector))
        )

    def prepare(self) -> None:
        """Compute in advance what takes long for thousands of terms."""
        _ = self.selected_keys
        self._columns = self._make_columns()

    def take_columns(self) -> TermColumns:
        """The columns. Prepared ones are dropped, so that only the caller keeps them."""
        columns, self._columns = self._columns, None
        return self._make_columns() if columns is None else columns

    def _make_columns(self) -> TermColumns:
        selectors, codes = SelectorColumns(), dict[TermScope, int]()
        totals, magnitudes, scopes = array("q"), array("q"), array("i")
        for selector, weight in self.weights:
            if selector.label_selector is not None:
                selectors.append(selector.label_selector)
                totals.append(weight.total)
                magnitudes.append(weight.magnitude)
                scope = selector.namespaces, selector.namespace_selector
                scopes.append(codes.setdefault(scope, len(codes)))
        return TermColumns(selectors, totals, magnitudes, scopes, tuple(codes))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, TermSet)
            and (self._hash, self.use, self.topology_key) == (other._hash, other.use, other.topology_key)
            and self.weights == other.weights
        )

    def __hash__(self) -> int:
        return self._hash


def _values(selector: PodSelector) -> Iterator[tuple[str, ...]]:
    for selects in (selector.namespace_selector, selector.label_selector):
        if selects is not None:
            yield from [requirement.values for requirement in selects.requirements]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class PodAffinity:
    """`spec.affinity.podAffinity` and `.podAntiAffinity`. `selects_itself`: all required terms match the pod's own
    labels, so it may be placed although no other pod matches. The hash is computed once: there can be thousands of terms.
    For the same reason decoded pods with equal ones share one object (`shared`), which compares by identity."""

    required: tuple[PodAffinityTerm, ...]
    required_anti: tuple[PodAffinityTerm, ...]
    preferred: tuple[WeightedPodAffinityTerm, ...]
    selects_itself: bool
    _hash: int = field(init=False, repr=False, compare=False)
    _term_sets: tuple[TermSet, ...] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        terms = self.required, self.required_anti, self.preferred, self.selects_itself
        object.__setattr__(self, "_hash", hash(terms))

    def __hash__(self) -> int:
        return self._hash

    @property
    def term_sets(self) -> tuple[TermSet, ...]:
        """Its terms by use and topology key, computed once."""
        if self._term_sets is None:
            by_use_and_key: dict[tuple[TermUse, str], dict[PodSelector, Weight]] = {}
            for use, weight, term in self._weighted_terms():
                weights = by_use_and_key.setdefault((use, term.topology_key), {})
                before = weights.get(term.pods)
                weights[term.pods] = weight if before is None else before.plus(weight)
            term_sets = tuple([TermSet(use, key, weights) for (use, key), weights in by_use_and_key.items()])
            object.__setattr__(self, "_term_sets", term_sets)
            return term_sets
        return self._term_sets

    def _weighted_terms(self) -> Iterator[tuple[TermUse, Weight, PodAffinityTerm]]:
        for term in self.required_anti:
            yield "rejects", _REQUIRED, term
        for term in self.required:
            yield "requires", _REQUIRED, term
        for preferred in self.preferred:
            yield "prefers", Weight(preferred.weight, abs(preferred.weight)), preferred.term

    def shared(self) -> "PodAffinity":
        """The first equal object that is in use. This compares and prepares terms, which is slow for large pods: these call
        it on a thread."""
        reference = _SHARED.get(self)
        affinity = None if reference is None else reference()
        if affinity is None:
            for terms in self.term_sets:
                if terms.is_large:
                    terms.prepare()
            _SHARED[self] = ref(self)
            return self
        return affinity


_REQUIRED = Weight(1, 1)
_FEW_TERMS = 16
"""A set of up to this many terms is prepared only when the pod is placed: of thousands of topology keys, nodes have few."""
_FEW_VALUES = 64
_SHARED: WeakKeyDictionary[PodAffinity, ref[PodAffinity]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class TopologySpreadConstraint:
    """One of `spec.topologySpreadConstraints`, with the API's defaults filled in.

    `hard` is DoNotSchedule. Counted are the pods of the pod's namespace that `label_selector` matches; it includes the
    requirements of matchLabelKeys. `honors_affinity` skips nodes that the pod's nodeSelector or node affinity excludes,
    `honors_taints` those with taints that it does not tolerate. `selects_itself`: the selector matches the pod itself."""

    topology_key: str
    max_skew: int
    min_domains: int
    hard: bool
    label_selector: LabelSelector | None
    honors_affinity: bool
    honors_taints: bool
    selects_itself: bool
