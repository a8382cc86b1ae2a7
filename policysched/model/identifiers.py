"""Identifiers by which objects refer to each other."""

from dataclasses import dataclass
from typing import NamedTuple, NewType

PodUid = NewType("PodUid", str)

NodeName = NewType("NodeName", str)


class VolumeClaimKey(NamedTuple):
    """Namespace and name of a PersistentVolumeClaim."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, order=True)
class ResourceClaimKey:
    """Namespace and name of a ResourceClaim. Not a tuple, so that it never equals a `VolumeClaimKey`."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


AnyClaim = VolumeClaimKey | ResourceClaimKey

PrebindTarget = str | VolumeClaimKey | ResourceClaimKey
"""An object that PreBind writes: a PersistentVolume (by name), a PersistentVolumeClaim or a ResourceClaim."""
