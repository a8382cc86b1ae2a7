"""What one attempt for one pod found."""

from collections.abc import Mapping
from dataclasses import dataclass

from policysched.cluster.objects import NodeName
from policysched.lang.events import ClusterEvent
from policysched.plan import BeforeBind
from policysched.schedule.reports import PendingReason


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a pod found no node, what could change that, and until when the answer holds (ns; None: until then)."""

    reason: PendingReason
    message: str
    nodes: int
    counts: Mapping[str, int]
    wakes: frozenset[ClusterEvent]
    valid_until_ns: int | None


@dataclass(frozen=True, slots=True)
class Success:
    """A node, and what has to be done for the pod before it is bound there (None: nothing, or not asked yet)."""

    node: NodeName
    score: int
    nodes: int
    feasible: int
    needs: BeforeBind | None = None
