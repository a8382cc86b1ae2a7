"""What one attempt for one pod found."""

from collections.abc import Mapping
from dataclasses import dataclass

from policysched.evaluate import BeforeBind
from policysched.model.cluster_events import ClusterEvent
from policysched.model.objects import NodeName
from policysched.scheduler.reports import PendingReason

PLACED_PODS = frozenset({ClusterEvent.ASSIGNED_POD_DELETE, ClusterEvent.ASSIGNED_POD_UPDATE})
"""What can help where nodes as such cannot."""


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


def refusal(why: str) -> Failure:
    """The pod itself is refused: no new node would help, what is placed now may go."""
    return Failure("PolicyPending", why, 0, {}, PLACED_PODS, None)
