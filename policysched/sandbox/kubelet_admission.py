"""Whether a pretend kubelet takes a pod: by the room of its node as it counts itself.

It knows what runs there before anybody else does: a static pod counts from its start, and the API server has its mirror
only a while later. Words and order of the reasons are those of `pkg/kubelet/lifecycle/predicate.go`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from policysched.kube.decode.requests import amounts, demand

Json = dict[str, Any]
_ALWAYS_FIRST = ("pods", "cpu", "memory", "ephemeral-storage")


@dataclass(frozen=True, slots=True)
class NotTaken:
    reason: str
    message: str


def not_taken(pod: Json, running: Iterable[Mapping[str, int]], node: Json) -> NotTaken | None:
    """Why this node does not take the pod beside those that run there, each given by its requests; None: it does."""
    asked = {"pods": 1, **requests_of(pod)}
    used = total(running)
    has = amounts((node.get("status") or {}).get("allocatable"), "status.allocatable")
    for resource in (*_ALWAYS_FIRST, *sorted(asked.keys() - set(_ALWAYS_FIRST))):
        wanted = asked.get(resource, 0)
        if wanted and wanted > has.get(resource, 0) - used.get(resource, 0):
            count = f"requested: {wanted}, used: {used.get(resource, 0)}, capacity: {has.get(resource, 0)}"
            return NotTaken(
                f"OutOf{resource}", f"Pod was rejected: Node didn't have enough resource: {resource}, {count}"
            )
    return None


def requests_of(pod: Json) -> dict[str, int]:
    return demand(pod["spec"], {}).requests


def total(running: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """What these take together, places for pods included."""
    found = {"pods": 0}
    for requests in running:
        found["pods"] += 1
        for resource, amount in requests.items():
            found[resource] = found.get(resource, 0) + amount
    return found
