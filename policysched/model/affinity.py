"""Node affinity, pod affinity and topology spread constraints of a pod."""

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, ref

from policysched.model.selectors import LabelSelector, NodeSelectorTerm


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

    def __post_init__(self) -> None:
        terms = self.required, self.required_anti, self.preferred, self.selects_itself
        object.__setattr__(self, "_hash", hash(terms))

    def __hash__(self) -> int:
        return self._hash

    def shared(self) -> "PodAffinity":
        """The first one of those that are equal and in use. Compares terms, so large pods call it on a thread."""
        reference = _SHARED.get(self)
        affinity = None if reference is None else reference()
        if affinity is None:
            _SHARED[self] = ref(self)
            return self
        return affinity


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
