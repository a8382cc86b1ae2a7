"""The search for the devices of a gang, before any of its members is placed. Until then nothing is lost when a slice is over, and
others are decided. What members change is searched again where they are placed."""

from policysched.cluster.devices.pod_claims import uses_devices
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.device_steps import search_devices
from policysched.scheduler.gangs.member_classes import MemberKeys
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.steps import Steps


def search_devices_of_members(
    core: SchedulerCore, gang: QueuedGang, equivalence_keys: MemberKeys
) -> Steps[bool]:
    """For one member of each class. Returns whether all nodes were searched before the slice was over; then it gets longer, for
    the members that are placed."""
    cache = core.cache.devices.allocation_cache
    for pod in {equivalence_keys[pod.uid]: pod for pod in gang.pending_members.values()}.values():
        if uses_devices(pod.pod) and not cache.is_cut_off:
            yield from search_devices(core, pod)
    return cache.begin_placing()
