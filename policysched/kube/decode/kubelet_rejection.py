"""Decodes from a pod's status why the kubelet rejected a pod that was bound to its node.

A kubelet counts the free resources of its node itself, including static and terminating pods, and fails a pod that does
not fit: reason `OutOfcpu`, with the amounts in the message. Other reasons are a node shutdown, a taint, an unavailable
device. Source: `pkg/kubelet/lifecycle/predicate.go` and `rejectPod` in `pkg/kubelet/kubelet.go`.
"""

import re
from collections.abc import Mapping
from typing import Any

from policysched.model.pod_status import KubeletRejection, ResourceShortage

Json = Mapping[str, Any]

_OUT_OF_PREFIX = "OutOf"
_REJECTED_PREFIX = "Pod was rejected"
_SHORTAGE_MESSAGE = re.compile(
    r"resource: (\S+), requested: \d{1,19}, used: (\d{1,19}), capacity: (\d{1,19})"
)


def decode_kubelet_rejection(status: Json) -> KubeletRejection | None:
    """None if the kubelet admitted the pod, whatever happened later."""
    reason, message = status.get("reason") or "", status.get("message") or ""
    if status.get("phase") != "Failed" or not isinstance(reason, str) or not isinstance(message, str):
        return None
    if reason.startswith(_OUT_OF_PREFIX) and len(reason) > len(_OUT_OF_PREFIX):
        return KubeletRejection(reason, _shortage(reason.removeprefix(_OUT_OF_PREFIX), message))
    return KubeletRejection(reason or "Other", None) if message.startswith(_REJECTED_PREFIX) else None


def _shortage(resource: str, message: str) -> ResourceShortage:
    count = _SHORTAGE_MESSAGE.search(message)
    if count is None or count[1] != resource:
        return ResourceShortage(resource, None)
    return ResourceShortage(resource, int(count[3]) - int(count[2]))
