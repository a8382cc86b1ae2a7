"""In which order the members of a gang are tried: queue order first, then the largest first if members are unequal."""

from collections.abc import Mapping
from itertools import chain

from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.neighbours import rank_of
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gangs import QueuedGang


def members_in_attempt_order(core: SchedulerCore, gang: QueuedGang) -> list[PendingPod]:
    """Nominated members first, then queue order; with topology levels by rank, and queue order among equal ones."""
    members = gang.members_in_order()
    if gang.levels:
        members.sort(key=lambda pod: _rank_key(pod))
    return sorted(members, key=lambda pod: pod.uid not in core.cache.nominated)


def largest_first(core: SchedulerCore, gang: QueuedGang) -> list[PendingPod] | None:
    """Nominated members first, then by size; None if all members request the same.

    The size of a member is its largest share, over all resources, of what the gang requests in total.
    """
    members = members_in_attempt_order(core, gang)
    requests = [member.pod.requests for member in members]
    if all(other == requests[0] for other in requests):
        return None
    totals = {
        resource: sum(amounts.get(resource, 0) for amounts in requests)
        for resource in set(chain.from_iterable(requests))
    }

    def size(amounts: Mapping[str, int]) -> tuple[float, float]:
        shares = [amounts.get(resource, 0) / total for resource, total in totals.items() if total]
        return max(shares, default=0.0), sum(sorted(shares))

    def key(member: PendingPod) -> tuple[bool, float, float]:
        largest, total = size(member.pod.requests)
        return member.uid not in core.cache.nominated, -largest, -total

    return sorted(members, key=key)


def _rank_key(member: PendingPod) -> tuple[bool, int]:
    rank = rank_of(member.pod)
    return (True, 0) if rank is None else (False, rank)
