"""Identifiers of API objects: what other objects refer to them by."""

from dataclasses import dataclass
from typing import NamedTuple, NewType

PodUid = NewType("PodUid", str)

NodeName = NewType("NodeName", str)


class VolumeClaimKey(NamedTuple):
    """A PersistentVolumeClaim's place in the API."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, order=True)
class ResourceClaimKey:
    """A ResourceClaim's place in the API. No tuple, so that it never equals a PersistentVolumeClaim's."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


AnyClaim = VolumeClaimKey | ResourceClaimKey

PrebindTarget = str | VolumeClaimKey | ResourceClaimKey
"""What is written before a bind: a volume, by its name, a claim for one, a claim for devices."""
