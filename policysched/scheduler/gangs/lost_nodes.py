"""Members of a paused gang that do not get their nodes any more, as an event or a decision about others changed these nodes.

Only such members are evaluated again, beside all others that have a node, and placed anew if they do not fit: so whoever takes nodes of
members costs the attempt their evaluations, and not those of thousands.
"""

from collections.abc import Collection

from policysched.cluster.devices.pod_claims import uses_devices
from policysched.evaluate import OneNode, Overlay
from policysched.model.identifiers import NodeName
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.attempt_result import AttemptSuccess
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.gang_overlay import add_member, present_overlay
from policysched.scheduler.gangs.gang_search_result import GangSearchResult
from policysched.scheduler.gangs.member_devices import keeps_devices, same_but_devices
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.steps import VISITS_PER_PIECE, Steps, evaluation_cost

_KEEPS_DEVICES_COST = 5
"""About 50 µs, where devices changed that the member could use."""


def depend_on_each_other(core: SchedulerCore, gang: QueuedGang) -> bool:
    """Whether the nodes of members may be right only because of where others are, so that none of these can be placed anew alone."""
    plan = core.plan(gang.policy)
    if plan.pod_totals or plan.filters_by_selector_group or plan.peer_keys(gang.representative_pod, None):
        return True
    pods = [member.pod for member in gang.pending_members.values()]
    return any(
        (pod.pod_affinity is not None and pod.pod_affinity.required) or any(each.hard for each in pod.spread)
        for pod in pods
    )


def lose_nodes(
    core: SchedulerCore,
    attempts: PodAttempts,
    gang: QueuedGang,
    search: GangSearchResult,
    changed: Collection[NodeName],
    devices_since: int | None,
    now_ns: int,
) -> Steps[int]:
    """Move members of `search.fits` to `search.lost`, and return how many. `devices_since`: the stamp of devices when they had theirs;
    None: no device has changed."""
    asked = [
        (pod, success)
        for pod, success in search.fits
        if success.node in changed or (devices_since is not None and uses_devices(pod.pod))
    ]
    asked_uids, lost = {pod.uid for pod, _ in asked}, []
    fits = search.fits[:]
    search.fits[:] = [fit for fit in fits if fit[0].uid not in asked_uids]
    overlay = yield from _without(core, gang, search, asked)
    for pod, success in asked:
        keeps = True
        if devices_since is not None and uses_devices(pod.pod):
            yield _KEEPS_DEVICES_COST
            keeps = keeps_devices(core, pod.pod, success, overlay, devices_since)
        if keeps and success.node in changed:
            keeps = yield from _still_fits(core, attempts, search, overlay, pod, success, now_ns)
        if keeps:
            add_member(overlay, pod, success)
        else:
            lost.append((pod, success))
    lost_uids = {pod.uid for pod, _ in lost}
    search.fits[:] = [fit for fit in fits if fit[0].uid not in lost_uids]
    search.overlay = overlay
    search.lost += lost
    return len(lost)


def _without(
    core: SchedulerCore,
    gang: QueuedGang,
    search: GangSearchResult,
    members: Collection[tuple[PendingPod, AttemptSuccess]],
) -> Steps[Overlay]:
    """The overlay of the search without members that are no longer among those that fit. To remove one searches for it, and leaves
    what it has reserved."""
    has_reserved = any(success.prebind_work is not None for _, success in members)
    if has_reserved or len(members) > VISITS_PER_PIECE:
        search.overlay = None
    elif search.overlay is not None:
        for pod, _ in members:
            search.overlay.remove_pod(pod.uid)
    return (yield from present_overlay(core, gang, search))


def _still_fits(
    core: SchedulerCore,
    attempts: PodAttempts,
    search: GangSearchResult,
    overlay: Overlay,
    pod: PendingPod,
    success: AttemptSuccess,
    now_ns: int,
) -> Steps[bool]:
    domain = search.domain
    if domain is not None and not domain.has(core.cache.nodes[success.node].labels):
        return False
    yield evaluation_cost(len(core.cache.nodes), core.evaluator.decision_cost(pod.pod))
    if not _is_lowered(core, pod, now_ns):
        return False  # to lower the rules of many members at once takes seconds: the search has steps
    if uses_devices(pod.pod):
        yield from attempts.warm_up(pod, now_ns, overlay)
    if not isinstance(attempts.evaluate(pod, overlay, now_ns, OneNode(success.node)), AttemptSuccess):
        return False
    work = attempts.prebind_work(pod, success.node, overlay, now_ns)
    return same_but_devices(success.prebind_work, work)  # else other volumes are left there


def _is_lowered(core: SchedulerCore, pod: PendingPod, now_ns: int) -> bool:
    """Whether the rules with the pod's layers are at hand, as after `warm_up` unless others displaced them."""
    plan, evaluator = core.plan(pod.policy), core.evaluator
    return not plan.program.layers or plan.is_lowered(
        evaluator.active_layers(plan, pod.pod, now_ns=now_ns, facts=pod.facts)
    )
