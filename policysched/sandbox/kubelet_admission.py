"""Whether the simulated kubelet admits a pod: by its operating system, and its own count of the node's free resources.

The kubelet counts a static pod from its start, before the API server has the mirror pod. The reasons
and their order are those of `pkg/kubelet/lifecycle/predicate.go`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from policysched.kube.decode.pod_resources import decode_pod_resources, decode_resource_list

Json = dict[str, Any]
_OS_LABEL = "kubernetes.io/os"
_CORE_RESOURCES = ("pods", "cpu", "memory", "ephemeral-storage")


@dataclass(frozen=True, slots=True)
class AdmitFailure:
    reason: str
    message: str


def check_admission(pod: Json, running: Iterable[Mapping[str, int]], node: Json) -> AdmitFailure | None:
    """Why the kubelet rejects the pod, given the requests of the running pods. None: it admits the pod."""
    wrong_system = _check_operating_system(pod, node)
    if wrong_system is not None:
        return wrong_system
    requests = {"pods": 1, **requests_of(pod)}
    used = total_requests(running)
    has = decode_resource_list((node.get("status") or {}).get("allocatable"), "status.allocatable")
    for resource in (*_CORE_RESOURCES, *sorted(requests.keys() - set(_CORE_RESOURCES))):
        wanted = requests.get(resource, 0)
        if wanted and wanted > has.get(resource, 0) - used.get(resource, 0):
            count = f"requested: {wanted}, used: {used.get(resource, 0)}, capacity: {has.get(resource, 0)}"
            return AdmitFailure(
                f"OutOf{resource}", f"Pod was rejected: Node didn't have enough resource: {resource}, {count}"
            )
    return None


def _check_operating_system(pod: Json, node: Json) -> AdmitFailure | None:
    """The pod's label and field against the node's label, which its kubelet sets; no scheduler reads the field."""
    system = (node["metadata"].get("labels") or {}).get(_OS_LABEL, "linux")
    if (pod["metadata"].get("labels") or {}).get(_OS_LABEL, system) != system:
        return AdmitFailure(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Pod was rejected: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        )
    if (pod["spec"].get("os") or {}).get("name", system) != system:
        return AdmitFailure(
            "PodOSNotSupported",
            "Pod was rejected: Failed to admit pod as the OS field doesn't match node OS",
        )
    return None


def requests_of(pod: Json) -> dict[str, int]:
    return decode_pod_resources(pod["spec"], {}).requests


def total_requests(running: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of requests; `pods` is their number."""
    totals = {"pods": 0}
    for requests in running:
        totals["pods"] += 1
        for resource, amount in requests.items():
            totals[resource] = totals.get(resource, 0) + amount
    return totals
