"""The cluster as a pod finds it while others are nominated: their victims are leaving, and their room is theirs."""

from policysched.cluster.objects import ObservedPod, Pod
from policysched.plan import Overlay
from policysched.schedule.core import Core


def nominated_overlay(core: Core, pod: Pod) -> Overlay | None:
    """The cluster with the pods on it that are nominated to a node and outrank this one or are its equals. None where
    there are none."""
    overlay = None
    for seen in core.cache.nominated.values():
        if seen.pod.uid == pod.uid or seen.pod.priority < pod.priority or not _still_nominated(core, seen):
            continue
        overlay = overlay or core.evaluator.overlay()
        assert seen.nominated_node is not None, f"{seen.pod.full_name} is nominated to no node"
        overlay.place(seen.pod, seen.nominated_node)
    return overlay


def _still_nominated(core: Core, seen: ObservedPod) -> bool:
    cache = core.cache
    return (
        seen.nominated_node in cache.nodes
        and not seen.deleting
        and cache.ledger.placement(seen.pod.uid) is None
    )
