"""Objects that select pods: Services, controllers and PodDisruptionBudgets."""

from dataclasses import dataclass
from typing import Literal

from policysched.model.selectors import LabelSelector


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget, as far as preemption reads it. `disrupted_pods` are the names of pods whose eviction the
    API server has already granted. `selector` None selects nothing."""

    namespace: str
    name: str
    selector: LabelSelector | None
    disruptions_allowed: int
    disrupted_pods: frozenset[str]


SelectorOwnerKind = Literal["Service", "ReplicationController", "ReplicaSet", "StatefulSet"]


@dataclass(frozen=True, slots=True)
class SelectorOwner:
    """A Service or controller and the selector of its pods in its namespace; `selector` None selects nothing. The
    selectors of Services and ReplicationControllers are In requirements of one value, sorted by key."""

    kind: SelectorOwnerKind
    namespace: str
    name: str
    selector: LabelSelector | None
