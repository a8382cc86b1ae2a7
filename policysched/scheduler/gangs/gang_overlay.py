"""The hypothetical cluster on which members of a gang are placed."""

from policysched.evaluate import Overlay
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.preemption.nominations import nominated_overlay
from policysched.scheduler.queue.gang_registry import QueuedGang


def gang_overlay(core: SchedulerCore, gang: QueuedGang, *, first_holds: bool = True) -> Overlay:
    """The cluster with all nominated pods added, except the members of this gang, and with the capacity holds."""
    members = gang.pending_members.keys()
    return (
        nominated_overlay(core, gang.representative_pod, excluding=members, first_holds=first_holds)
        or core.evaluator.overlay()
    )
