"""Parked entries of one equivalence class and the verdict that they share."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import AnyClaim
from policysched.scheduler.commands import PendingReason
from policysched.scheduler.queue.entries import QueueEntry
from policysched.scheduler.queue.ordered_queue import OrderedQueue

EquivalenceKey = Hashable


@dataclass(slots=True, eq=False)
class ParkedGroup:
    """The parked entries of one equivalence class, and the verdict that they share.

        blocked ──an event of `requeue_events`, or the verdict expired──► open: members are requeued one by one
           ▲                                                               │
           └──────────────────── a representative failed ◄─────────────────┘

    An open parked group with members has at least one requeued representative. `claims` are those that the members use.
    `reported_message` is the message last reported for the members. While a newer one (`message_being_reported`) is
    reported in portions, `unreported` are the members that still lack it.
    """

    equivalence_key: EquivalenceKey
    policy: str
    members: OrderedQueue
    blocked: bool = False
    requeue_events: frozenset[ClusterEvent] = frozenset()
    reason: PendingReason = "Unschedulable"
    message: str = ""
    representatives: dict[QueueEntry, None] = field(default_factory=dict)
    reported_message: str = ""
    report_count: int = 0
    message_being_reported: str = ""
    unreported: list[QueueEntry] | None = None
    claims: frozenset[AnyClaim] = frozenset()
