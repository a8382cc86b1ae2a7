"""Node affinity, pod affinity and topology spread constraints of a pod."""

from dataclasses import dataclass

from policysched.model.selectors import LabelSelector, NodeSelectorTerm


@dataclass(frozen=True, slots=True)
class PreferredSchedulingTerm:
    weight: int
    term: NodeSelectorTerm


@dataclass(frozen=True, slots=True)
class NodeAffinity:
    """`required` None: no requirement; else one of the terms must match."""

    required: tuple[NodeSelectorTerm, ...] | None
    preferred: tuple[PreferredSchedulingTerm, ...]


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Some pods: those in `namespaces`, and in the namespaces whose labels `namespace_selector` matches (None: no more
    of them; without requirements: all), that `label_selector` matches. None as `label_selector` matches nothing."""

    namespaces: tuple[str, ...]
    namespace_selector: LabelSelector | None
    label_selector: LabelSelector | None


@dataclass(frozen=True, slots=True)
class PodAffinityTerm:
    """Pods, and the node label whose equal values make one domain. What matchLabelKeys and mismatchLabelKeys demand
    stands in the selector, as in what the API server stores."""

    pods: PodSelector
    topology_key: str


@dataclass(frozen=True, slots=True)
class WeightedPodAffinityTerm:
    """A preferred term; affinity has weights above 0, anti-affinity the same below."""

    weight: int
    term: PodAffinityTerm


@dataclass(frozen=True, slots=True)
class PodAffinity:
    """`spec.affinity.podAffinity` and `.podAntiAffinity`. `selects_itself`: the labels of all required terms match the
    pod's own, so that it may be the first of its kind."""

    required: tuple[PodAffinityTerm, ...]
    required_anti: tuple[PodAffinityTerm, ...]
    preferred: tuple[WeightedPodAffinityTerm, ...]
    selects_itself: bool


@dataclass(frozen=True, slots=True)
class TopologySpreadConstraint:
    """One of `spec.topologySpreadConstraints`, with the API's defaults filled in. `hard` is DoNotSchedule. The pods that
    are counted are those of the pod's namespace that `label_selector` matches, what matchLabelKeys demand included.
    `honors_affinity`, `honors_taints`: nodes that the pod's nodeSelector and node affinity, or its tolerations, rule
    out are not counted. `selects_itself`: the pod itself would be counted."""

    topology_key: str
    max_skew: int
    min_domains: int
    hard: bool
    label_selector: LabelSelector | None
    honors_affinity: bool
    honors_taints: bool
    selects_itself: bool
