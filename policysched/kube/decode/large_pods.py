"""What is kept of pods with thousands of items, such as tolerations and terms, which take several times their JSON in memory.

A pod that exceeds the budget of a decision without a node is decided about on no cluster: its items are dropped until it is on a
node, or nominated, and counts for others, and again once it has ended. So are thousands of labels, annotations or scheduling gates.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from policysched.evaluate.decision_cost import DecisionCost
from policysched.kube.decode.pod_updates import DecodedPod
from policysched.model.copies import changed_copy
from policysched.model.pod_status import ObservedPod

_DecodedUpdate = tuple[ObservedPod, DecodedPod | None]
DecodePod = Callable[[DecodedPod | None], _DecodedUpdate]
"""Decodes a pod with what was decoded before."""

_ITEMS: Mapping[str, Any] = {
    "node_selector": {},
    "tolerations": (),
    "affinity": None,
    "pod_affinity": None,
    "spread": (),
    "host_ports": (),
    "images": (),
    "image_volumes": (),
    "claims": (),
    "disks": (),
    "mounts": (),
    "device_claims": (),
    "extended": (),
    "requests": {},
    "limits": {},
}


_METADATA_MAX = _GATES_MAX = 4096
_TOO_MUCH_METADATA = (
    f"the pod has more than {_METADATA_MAX} labels and annotations; it is scheduled with fewer"
)
_TOO_MANY_GATES = f"the pod has more than {_GATES_MAX} scheduling gates; it is scheduled with fewer"


def decode_without_unread_items(
    decode: DecodePod, before: DecodedPod | None, decision_budget: int
) -> _DecodedUpdate:
    """What `decode` returns, without the items of a pod that no cluster decides about. `Pod.too_large` says why they are missing.
    `decision_budget`: in operations (`evaluate.decision_cost`)."""
    observed, decoded = decode(before)
    is_counted = not observed.finished and bool(observed.node or observed.nominated_node)
    has_all = len(observed.pod.labels) + len(observed.pod.annotations) <= _METADATA_MAX
    if (is_counted and observed.pod.too_large) or (has_all and observed.pod.too_large == _TOO_MUCH_METADATA):
        observed, decoded = decode(None)
    if decoded is None or is_counted:
        return observed, decoded
    pod, dropped = observed.pod, dict[str, Any]()
    if message := DecisionCost(pod).over_budget_message(0, decision_budget):
        dropped |= _ITEMS
    if len(pod.gates) > _GATES_MAX:
        message = message or _TOO_MANY_GATES
        dropped |= {**_ITEMS, "gates": ()}
    if not has_all:
        dropped |= {"labels": {}, "annotations": {}}
    if not dropped:
        return observed, decoded
    pod = changed_copy(pod, **dropped, too_large=message or pod.too_large or _TOO_MUCH_METADATA)
    return replace(observed, pod=pod), replace(decoded, pod=pod)
