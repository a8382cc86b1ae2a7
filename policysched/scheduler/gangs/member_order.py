"""In which order the members of a gang are tried: queue order first, then the most demanding first if members are unequal."""

from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from policysched.model.identifiers import PodUid, ResourceClaimKey, VolumeClaimKey
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.member_classes import MemberKeys
from policysched.scheduler.gangs.neighbours import rank_of
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.steps import Steps, visit_in_pieces

_DEMAND_COST = 4


def members_in_attempt_order(core: SchedulerCore, gang: QueuedGang) -> Sequence[PendingPod]:
    """Nominated members first, then queue order; with topology levels by rank, and queue order among equal ones."""
    members, nominated = gang.members_in_order(), core.cache.nominated
    if gang.levels:
        members = sorted(members, key=_rank_key)
    if nominated.keys().isdisjoint(gang.pending_members.keys()):
        return members
    return sorted(members, key=lambda pod: pod.uid not in nominated)


def most_demanding_first(
    core: SchedulerCore, gang: QueuedGang, keys: MemberKeys, failed: Container[PodUid] = ()
) -> Steps[list[PendingPod] | None]:
    """Nominated members first, then those that `failed` in another order, then by size; None if all members are equal.
    `keys`: those of their equivalence classes.

    The size of a member is its largest share, over all resources, of what the gang requests in total.
    """
    members = members_in_attempt_order(core, gang)
    requests = [member.pod.requests for member in members]
    is_equal_size = all(other == requests[0] for other in requests)
    if is_equal_size:
        is_one_class, demands = len(set(keys.values())) == 1, set[Hashable]()
        unequal = [] if is_one_class else [*{member.equivalence_key: member for member in members}.values()]
        yield from visit_in_pieces(unequal, lambda member: demands.add(_demand(core, member)), _DEMAND_COST)
        if len(demands) <= 1:
            return None
    totals = {
        resource: sum(amounts.get(resource, 0) for amounts in requests)
        for resource in set(chain.from_iterable(requests))
    }

    def size(amounts: Mapping[str, int]) -> tuple[float, float]:
        shares = [amounts.get(resource, 0) / total for resource, total in totals.items() if total]
        return max(shares, default=0.0), sum(sorted(shares))

    def key(member: PendingPod) -> tuple[bool, bool, float, float]:
        largest, total = size(member.pod.requests)
        return member.uid not in core.cache.nominated, member.uid not in failed, -largest, -total

    return sorted(members, key=key)


def _demand(core: SchedulerCore, member: PendingPod) -> Hashable:
    """Equal for members that may run on the same nodes: what the policy reads of the pod, with its claims by their
    content, because claims from one template differ by name alone."""
    pod = member.pod
    volumes = tuple(_volume_demand(core, use.claim) for use in pod.claims)
    devices = tuple(_device_demand(core, use.claim) for use in pod.device_claims)
    nameless = replace(pod, claims=(), device_claims=())
    return core.plan(member.policy).read_key(nameless, core.namespace_of(pod)), volumes, devices


def _volume_demand(core: SchedulerCore, key: VolumeClaimKey) -> Hashable:
    claim = core.cache.volumes.claims.get(key)
    if claim is None or claim.volume_name or claim.selected_node:
        return key  # a volume limits the nodes
    return claim.class_name, claim.request_bytes, claim.access_modes


def _device_demand(core: SchedulerCore, key: ResourceClaimKey | None) -> Hashable:
    claim = None if key is None else core.cache.devices.claims.get(key)
    if claim is None or claim.allocation is not None:
        return key  # an allocation limits the nodes
    return claim.spec_text


def _rank_key(member: PendingPod) -> tuple[bool, int]:
    rank = rank_of(member.pod)
    return (True, 0) if rank is None else (False, rank)
