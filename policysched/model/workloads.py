"""Objects that select pods: Services, controllers and PodDisruptionBudgets."""

from dataclasses import dataclass
from typing import Literal

from policysched.model.selectors import LabelSelector


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget, as far as preemption asks: how many of the selected pods may go now, and the names of
    those that the API server has let go already. `selector` None selects nothing."""

    namespace: str
    name: str
    selector: LabelSelector | None
    disruptions_allowed: int
    disrupted_pods: frozenset[str]


PodSetKind = Literal["Service", "ReplicationController", "ReplicaSet", "StatefulSet"]


@dataclass(frozen=True, slots=True)
class PodSet:
    """A Service or a controller as the pods of its namespace that it selects; `selector` None selects none. Those of
    Services and ReplicationControllers are In requirements of one value, in the order of their keys."""

    kind: PodSetKind
    namespace: str
    name: str
    selector: LabelSelector | None
