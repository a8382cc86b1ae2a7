"""Volumes that a pod is to get: chosen for it on its node, and promised to it until they are its own.

    free ──promise (a pod is assumed)──► promised ──written──► the watch shows it: the object itself says so
      ▲                                     │ release, or a version that is not ours
      └─────────────────────────────────────┘

A promise stands between the decision and the moment at which the watch shows what was written, so that a volume is not
given out twice and a claim is not sent to two nodes. A version of the object that somebody else wrote ends it: what
the API server says is so. Source: the assume caches of kube-scheduler's VolumeBinding.
"""

from collections.abc import Set
from dataclasses import dataclass, field, replace

from policysched.model.objects import ClaimKey, NodeName, PodUid
from policysched.model.storage import ClaimRef, PersistentVolume, PersistentVolumeClaim

_NO_NAMES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class VolumeChoice:
    """What has to happen to a pod's claims on its node: those that are bound to volumes that are there, and those whose
    volumes are to be made. Empty: nothing."""

    static: tuple[tuple[PersistentVolumeClaim, PersistentVolume], ...] = ()
    provisioned: tuple[PersistentVolumeClaim, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.static or self.provisioned)

    @property
    def keys(self) -> "tuple[Promised, ...]":
        """What it takes: the volumes, and the claims whose volumes are to be made."""
        return (*(volume.name for _, volume in self.static), *(claim.key for claim in self.provisioned))


@dataclass(frozen=True, slots=True)
class Promise:
    """`value` is promised on top of version `base`, for pods that may share the claim. `written`: the version that says it,
    once it is written."""

    pods: frozenset[PodUid]
    value: ClaimRef | NodeName
    base: int
    written: int | None = None

    def is_over(self, version: int) -> bool:
        return version != self.base if self.written is None else version >= self.written


Promised = str | ClaimKey
"""What can be promised: a volume, by its name, or where a claim's volume is to be made."""


@dataclass(slots=True)
class Promises:
    """`given` is to be read only. `additions` counts calls of `add`."""

    given: dict[Promised, Promise] = field(default_factory=dict)
    additions: int = 0
    _volumes_of: dict[ClaimKey, set[str]] = field(default_factory=dict)

    def add(self, pod: PodUid, choice: VolumeChoice, node: NodeName) -> None:
        self.additions += 1
        for claim, volume in choice.static:
            self._add(volume.name, pod, ClaimRef(claim.key, claim.uid), volume.version)
        for claim in choice.provisioned:
            self._add(claim.key, pod, node, claim.version)

    def _add(self, key: Promised, pod: PodUid, value: ClaimRef | NodeName, base: int) -> None:
        known = self.given.get(key)
        if known is not None and known.value == value:
            self.given[key] = replace(known, pods=known.pods | {pod})
            return
        if known is not None:
            self.drop(key)
        self.given[key] = Promise(frozenset({pod}), value, base)
        if isinstance(key, str) and isinstance(value, ClaimRef):
            self._volumes_of.setdefault(value.claim, set()).add(key)

    def drop(self, key: Promised) -> None:
        """Nothing happens where nothing is promised."""
        promise = self.given.pop(key, None)
        if promise is not None and isinstance(key, str) and isinstance(promise.value, ClaimRef):
            volumes = self._volumes_of[promise.value.claim]
            volumes.remove(key)
            if not volumes:
                del self._volumes_of[promise.value.claim]

    def volumes_of(self, claim: ClaimKey) -> Set[str]:
        """The names of the volumes that are promised to the claim."""
        return self._volumes_of.get(claim, _NO_NAMES)
