"""The result of one attempt of a pod."""

from collections.abc import Mapping
from dataclasses import dataclass

from policysched.evaluate import PrebindRequirements
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName
from policysched.scheduler.commands import PendingReason

PLACED_POD_EVENTS = frozenset({ClusterEvent.ASSIGNED_POD_DELETE, ClusterEvent.ASSIGNED_POD_UPDATE})
"""Events that can help a pod that no new node would help."""


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """Why no node was found, the events that could change that, and when the verdict expires (ns; None: never)."""

    reason: PendingReason
    message: str
    node_count: int
    counts: Mapping[str, int]
    requeue_events: frozenset[ClusterEvent]
    valid_until_ns: int | None


@dataclass(frozen=True, slots=True)
class AttemptSuccess:
    """The selected node, and the work before the bind (None: none, or not known yet)."""

    node: NodeName
    score: int
    node_count: int
    feasible_count: int
    prebind_work: PrebindRequirements | None = None


def reject_over_budget(message: str) -> AttemptFailure:
    """The pod was not evaluated. A larger cluster makes it more expensive, a smaller one may not."""
    return AttemptFailure("PolicyPending", message, 0, {}, frozenset({ClusterEvent.NODE_DELETE}), None)


def reject_pod(message: str) -> AttemptFailure:
    """The pod itself is rejected: no new node would help, but the removal of placed pods may."""
    return AttemptFailure("PolicyPending", message, 0, {}, PLACED_POD_EVENTS, None)
