"""Nominated pods: the capacity that is reserved for them on their nominated nodes."""

from collections.abc import Collection

from policysched.evaluate import Overlay
from policysched.lang.ir.program import GangMode
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import QueuedGang


def competing_nominations(
    core: SchedulerCore, pod: Pod, excluding: Collection[PodUid] = (), *, first_holds: bool = True
) -> list[tuple[Pod, NodeName]]:
    """Nominated pods of equal or higher priority, or with a claim, with their nodes, and such capacity holds.

    `excluding`: UIDs to leave out, such as the other members of the pod's gang. `first_holds`: with capacity holds that
    were not repeated.
    """
    nominations = []
    claims: Collection[PodUid] | None = None
    for observed in core.cache.nominated.values():
        if observed.pod.uid == pod.uid or observed.pod.uid in excluding:
            continue
        competes = observed.pod.priority >= pod.priority
        if not competes:
            claims = claims_against(core, pod) if claims is None else claims
            competes = observed.pod.uid in claims
        if competes and _still_nominated(core, observed):
            assert observed.nominated_node is not None, f"{observed.pod.full_name} is nominated to no node"
            nominations.append((observed.pod, observed.nominated_node))
    for node, holds in core.capacity_holds.items():
        nominations += [
            (hold.pod, node)
            for hold in holds
            if hold.pod.priority >= pod.priority and (first_holds or hold.is_repeated)
        ]
    return nominations


def claims_against(core: SchedulerCore, pod: Pod) -> Collection[PodUid]:
    """The nominated pods that keep their nodes from this pod, or from its gang, whatever its priority: by what their quotas
    entitle them to, while it would borrow."""
    return core.quotas.claims_against(pods_judged_together(core, pod))


def pods_judged_together(core: SchedulerCore, pod: Pod) -> list[Pod]:
    """The pod, or the pending members of its gang: whether it would borrow depends on all."""
    gang = core.gangs.gang_of(pod.uid)
    if gang is None or gang.mode is not GangMode.WHOLE or pod.uid not in gang.pending_members:
        return [pod]
    return [member.pod for member in gang.pending_members.values()]


def fits_after_first_holds(core: SchedulerCore, pod: PendingPod, now_ns: int) -> bool:
    """Whether only capacity holds that were not repeated keep the pod from all nodes. Nothing is evicted for that."""
    if not has_first_holds(core, pod.pod):
        return False
    verdict = core.evaluator.evaluate(
        core.plan(pod.policy),
        pod.pod,
        **core.evaluation_inputs(pod, now_ns),
        overlay=None,
        nominated_node=None,
        domain=None,
        nominated_pods=competing_nominations(core, pod.pod, first_holds=False),
    )
    return verdict.selected is not None


def has_first_holds(core: SchedulerCore, pod: Pod) -> bool:
    """Whether capacity holds that were not repeated may keep the pod from a node."""
    return any(
        hold.pod.priority >= pod.priority and not hold.is_repeated
        for holds in core.capacity_holds.values()
        for hold in holds
    )


def nominated_overlay(
    core: SchedulerCore, pod: Pod, excluding: Collection[PodUid] = (), *, first_holds: bool = True
) -> Overlay | None:
    """An overlay with all competing nominated pods added; None if there are none."""
    reserved = competing_nominations(core, pod, excluding, first_holds=first_holds)
    if not reserved:
        return None
    overlay = core.evaluator.overlay()
    for other, node in reserved:
        overlay.add_pod(other, node)
    return overlay


def withdraw_gang_nominations(core: SchedulerCore, gang: QueuedGang, now_ns: int) -> None:
    """Those of all pending members together."""
    for uid in [uid for uid in core.cache.nominated if uid in gang.pending_members]:
        core.withdraw_nomination(uid, now_ns)


def _still_nominated(core: SchedulerCore, observed: ObservedPod) -> bool:
    cache = core.cache
    return (
        observed.nominated_node in cache.nodes
        and not observed.deleting
        and cache.ledger.placement(observed.pod.uid) is None
    )
