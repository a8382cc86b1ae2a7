"""Why a kubelet did not take a pod that was bound to its node, from the pod's status.

A kubelet counts by itself what its node has left, static pods and those that still end included, and fails a pod that
does not fit: reason `OutOfcpu`, with its count in the message. Other reasons are a node that shuts down, a taint, a
device that cannot be had. Source: `pkg/kubelet/lifecycle/predicate.go` and `rejectPod` in `pkg/kubelet/kubelet.go`.
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
    """None where the pod was taken, whatever became of it then."""
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
