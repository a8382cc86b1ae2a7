"""Pods whose binds are refused again and again evict no others for a while.

A webhook of its namespace can refuse the binds of a pod for ever. Each time the room is free again that was made for it, the
evicted pods come back there, and it would evict them again. So from its second refusal on it waits before it evicts, twice as
long after each; where it fits without that it is tried as before. A single refusal is often nobody's intent: a node that changed.
So is one of a pod or gang that had none for an hour. A bind that was not sent because this process stalled is none; one that was
cancelled is, as its gang was refused.
"""

from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.queue.entries import QueueEntry
from policysched.scheduler.queue.gang_registry import QueuedGang

TOLERATED = 1
WAIT_INITIAL_S = 20
WAIT_MAX_S = 640
FORGOTTEN_AFTER_S = 3_600

BINDS_REFUSED = "not tried for a while, because binds of the pod were refused."


def note_refused_bind(entry: QueueEntry, now_ns: int) -> None:
    """Or what precedes its bind was refused. Of a gang: once for each attempt, also if each time it is another member's, while the bound
    ones are evicted and created again."""
    if now_ns - entry.evicts_after_ns > FORGOTTEN_AFTER_S * SECOND_NS:
        entry.refused_binds = 0
    entry.refused_binds += 1
    entry.evicts_after_ns = now_ns + eviction_wait_s(entry) * SECOND_NS


def eviction_wait_s(entry: QueueEntry) -> int:
    """How long it waits after its last refusal. Equal pods that wait longer, or not at all, do not fail together with it."""
    if entry.refused_binds <= TOLERATED:
        return 0
    doublings = min(entry.refused_binds - TOLERATED - 1, 10)
    return min(WAIT_INITIAL_S << doublings, WAIT_MAX_S)


def gang_evicts_after_ns(gang: QueuedGang) -> int:
    """Its members evict together."""
    return max(entry.evicts_after_ns for entry in (gang, *gang.pending_members.values()))
