"""What is kept of pods with thousands of items, such as tolerations and terms, which take several times their JSON in memory.

A pod that exceeds the budget of a decision without a node is decided about on no cluster: its items are dropped until it is on a
node, or nominated, and counts for others.
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


def decode_without_unread_items(
    decode: DecodePod, before: DecodedPod | None, decision_budget: int
) -> _DecodedUpdate:
    observed, decoded = decode(before)
    if observed.node is not None or observed.nominated_node is not None:
        return decode(None) if observed.pod.too_large else (observed, decoded)
    message = DecisionCost(observed.pod).over_budget_message(0, decision_budget)
    if decoded is None or message is None:
        return observed, decoded
    pod = changed_copy(observed.pod, **_ITEMS, too_large=message)
    return replace(observed, pod=pod), replace(decoded, pod=pod)
