"""What one attempt for one pod found."""

from collections.abc import Mapping
from dataclasses import dataclass

from policysched.evaluate import PrebindRequirements
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName
from policysched.scheduler.pending_reports import PendingReason

PLACED_POD_EVENTS = frozenset({ClusterEvent.ASSIGNED_POD_DELETE, ClusterEvent.ASSIGNED_POD_UPDATE})
"""What can help where nodes as such cannot."""


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """Why a pod found no node, what could change that, and until when the answer holds (ns; None: until then)."""

    reason: PendingReason
    message: str
    node_count: int
    counts: Mapping[str, int]
    requeue_events: frozenset[ClusterEvent]
    valid_until_ns: int | None


@dataclass(frozen=True, slots=True)
class AttemptSuccess:
    """A node, and what has to be done for the pod before it is bound there (None: nothing, or not asked yet)."""

    node: NodeName
    score: int
    node_count: int
    feasible_count: int
    prebind_work: PrebindRequirements | None = None


def reject_pod(why: str) -> AttemptFailure:
    """The pod itself is refused: no new node would help, what is placed now may go."""
    return AttemptFailure("PolicyPending", why, 0, {}, PLACED_POD_EVENTS, None)
