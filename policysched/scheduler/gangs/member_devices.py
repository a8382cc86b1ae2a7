"""The devices of the members of a gang: their search before any member is placed, and whether a placed one still has its own.

Until a member is placed nothing is lost when a slice is over, and others are decided. What members change is searched again where
they are placed."""

from collections.abc import Hashable

from policysched.cluster.devices.pod_claims import uses_devices
from policysched.evaluate import Overlay, PrebindRequirements
from policysched.model.pods import Pod
from policysched.scheduler.attempt_result import AttemptSuccess
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


def keeps_devices(
    core: SchedulerCore, pod: Pod, success: AttemptSuccess, overlay: Overlay, since: int
) -> bool:
    """Whether the claims of a member are as they were at this stamp, and its devices are still those of its node, and free beside
    the members on the overlay, which were placed before."""
    devices = core.cache.devices
    stamps, choice = devices.stamps, success.prebind_work and success.prebind_work.devices
    keys = [use.claim for use in pod.device_claims if use.claim is not None]
    if any(key not in devices.claims or stamps.of_claim(key) > since for key in keys):
        return False
    if not choice:
        return True
    *usage, classes = stamps.of_node(success.node)
    if devices.unserved_kinds or classes > since:
        return False
    if choice.claim_to_create is not None and devices.extended_claims_of(pod.uid, pod.namespace):
        return False
    if max(usage) <= since:
        return True
    same_slices = max(stamps.of_slices(success.node)) <= since
    return overlay.still_has(choice, core.cache.nodes[success.node], same_slices=same_slices)


def same_but_devices(before: PrebindRequirements | None, now: PrebindRequirements | None) -> bool:
    """Whether a member has the same to bind but for the choice of devices."""
    return _without_choice(before) == _without_choice(now)


def _without_choice(work: PrebindRequirements | None) -> Hashable:
    if work is None:
        return None
    choice = work.devices
    asked = tuple([(claim.uid, claim.spec_text) for claim, _ in choice.allocated])
    return work.volumes, asked, choice.reserved, choice.extended_resource_mappings
