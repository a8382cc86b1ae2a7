"""Whether a pretend kubelet takes a pod: by the room of its node as it counts itself.

It knows what runs there before anybody else does: a static pod counts from its start, and the API server has its mirror
only a while later. Words and order of the reasons are those of `pkg/kubelet/lifecycle/predicate.go`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from policysched.kube.decode.pod_resources import decode_pod_resources, decode_resource_list

Json = dict[str, Any]
_CORE_RESOURCES = ("pods", "cpu", "memory", "ephemeral-storage")


@dataclass(frozen=True, slots=True)
class AdmitFailure:
    reason: str
    message: str


def check_admission(pod: Json, running: Iterable[Mapping[str, int]], node: Json) -> AdmitFailure | None:
    """Why this node does not take the pod beside those that run there, each given by its requests; None: it does."""
    asked = {"pods": 1, **requests_of(pod)}
    used = total_requests(running)
    has = decode_resource_list((node.get("status") or {}).get("allocatable"), "status.allocatable")
    for resource in (*_CORE_RESOURCES, *sorted(asked.keys() - set(_CORE_RESOURCES))):
        wanted = asked.get(resource, 0)
        if wanted and wanted > has.get(resource, 0) - used.get(resource, 0):
            count = f"requested: {wanted}, used: {used.get(resource, 0)}, capacity: {has.get(resource, 0)}"
            return AdmitFailure(
                f"OutOf{resource}", f"Pod was rejected: Node didn't have enough resource: {resource}, {count}"
            )
    return None


def requests_of(pod: Json) -> dict[str, int]:
    return decode_pod_resources(pod["spec"], {}).requests


def total_requests(running: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """What these take together, places for pods included."""
    found = {"pods": 0}
    for requests in running:
        found["pods"] += 1
        for resource, amount in requests.items():
            found[resource] = found.get(resource, 0) + amount
    return found
