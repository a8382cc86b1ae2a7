"""Nominated pods: the capacity that is reserved for them on their nominated nodes."""

from collections.abc import Collection

from policysched.evaluate import Overlay
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler.core import SchedulerCore


def competing_nominations(
    core: SchedulerCore, pod: Pod, excluding: Collection[PodUid] = ()
) -> list[tuple[Pod, NodeName]]:
    """Nominated pods of equal or higher priority, with their nodes, and such capacity holds.

    `excluding`: UIDs to leave out, such as the other members of the pod's gang.
    """
    nominations = []
    for observed in core.cache.nominated.values():
        if observed.pod.uid == pod.uid or observed.pod.uid in excluding:
            continue
        if observed.pod.priority >= pod.priority and _still_nominated(core, observed):
            assert observed.nominated_node is not None, f"{observed.pod.full_name} is nominated to no node"
            nominations.append((observed.pod, observed.nominated_node))
    for node, holds in core.capacity_holds.items():
        nominations += [(hold, node) for hold in holds if hold.priority >= pod.priority]
    return nominations


def nominated_overlay(core: SchedulerCore, pod: Pod, excluding: Collection[PodUid] = ()) -> Overlay | None:
    """An overlay with all competing nominated pods added; None if there are none."""
    reserved = competing_nominations(core, pod, excluding)
    if not reserved:
        return None
    overlay = core.evaluator.overlay()
    for other, node in reserved:
        overlay.add_pod(other, node)
    return overlay


def _still_nominated(core: SchedulerCore, observed: ObservedPod) -> bool:
    cache = core.cache
    return (
        observed.nominated_node in cache.nodes
        and not observed.deleting
        and cache.ledger.placement(observed.pod.uid) is None
    )
