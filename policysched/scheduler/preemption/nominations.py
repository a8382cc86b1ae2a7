"""The cluster as a pod finds it while others are nominated: their victims are leaving, and their room is theirs."""

from collections.abc import Collection

from policysched.evaluate import Overlay
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler.core import SchedulerCore


def competing_nominations(
    core: SchedulerCore, pod: Pod, excluding: Collection[PodUid] = ()
) -> list[tuple[Pod, NodeName]]:
    """The pods that are nominated to a node and outrank this one or are its equals, with their nodes. `excluding`: without these,
    for they come together."""
    found = []
    for seen in core.cache.nominated.values():
        if seen.pod.uid == pod.uid or seen.pod.uid in excluding:
            continue
        if seen.pod.priority >= pod.priority and _still_nominated(core, seen):
            assert seen.nominated_node is not None, f"{seen.pod.full_name} is nominated to no node"
            found.append((seen.pod, seen.nominated_node))
    return found


def nominated_overlay(core: SchedulerCore, pod: Pod, excluding: Collection[PodUid] = ()) -> Overlay | None:
    """The cluster with all of these on it; None where there are none."""
    reserved = competing_nominations(core, pod, excluding)
    if not reserved:
        return None
    overlay = core.evaluator.overlay()
    for other, node in reserved:
        overlay.add_pod(other, node)
    return overlay


def _still_nominated(core: SchedulerCore, seen: ObservedPod) -> bool:
    cache = core.cache
    return (
        seen.nominated_node in cache.nodes
        and not seen.deleting
        and cache.ledger.placement(seen.pod.uid) is None
    )
