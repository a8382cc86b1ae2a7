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

from policysched.model.identifiers import NodeName, PodUid, VolumeClaimKey
from policysched.model.storage import ClaimRef, PersistentVolume, PersistentVolumeClaim

_NO_NAMES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class VolumeChoice:
    """What has to happen to a pod's claims on its node: those that are bound to volumes that are there, and those whose
    volumes are to be made. Empty: nothing."""

    static_bindings: tuple[tuple[PersistentVolumeClaim, PersistentVolume], ...] = ()
    dynamic_provisions: tuple[PersistentVolumeClaim, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.static_bindings or self.dynamic_provisions)

    @property
    def reservation_keys(self) -> "tuple[VolumeReservationKey, ...]":
        """What it takes: the volumes, and the claims whose volumes are to be made."""
        return (
            *(volume.name for _, volume in self.static_bindings),
            *(claim.key for claim in self.dynamic_provisions),
        )


@dataclass(frozen=True, slots=True)
class VolumeReservation:
    """`target` is promised on top of version `base_version`, for pods that may share the claim. `written_version`: the version that says it,
    once it is written."""

    pods: frozenset[PodUid]
    target: ClaimRef | NodeName
    base_version: int
    written_version: int | None = None

    def is_superseded(self, version: int) -> bool:
        return (
            version != self.base_version if self.written_version is None else version >= self.written_version
        )


VolumeReservationKey = str | VolumeClaimKey
"""What can be promised: a volume, by its name, or where a claim's volume is to be made."""


@dataclass(slots=True)
class VolumeReservations:
    """`by_key` is to be read only. `add_count` counts calls of `add`."""

    by_key: dict[VolumeReservationKey, VolumeReservation] = field(default_factory=dict)
    add_count: int = 0
    _volumes_by_claim: dict[VolumeClaimKey, set[str]] = field(default_factory=dict)

    def add(self, pod: PodUid, choice: VolumeChoice, node: NodeName) -> None:
        self.add_count += 1
        for claim, volume in choice.static_bindings:
            self._add(volume.name, pod, ClaimRef(claim.key, claim.uid), volume.version)
        for claim in choice.dynamic_provisions:
            self._add(claim.key, pod, node, claim.version)

    def _add(self, key: VolumeReservationKey, pod: PodUid, value: ClaimRef | NodeName, base: int) -> None:
        known = self.by_key.get(key)
        if known is not None and known.target == value:
            self.by_key[key] = replace(known, pods=known.pods | {pod})
            return
        if known is not None:
            self.drop(key)
        self.by_key[key] = VolumeReservation(frozenset({pod}), value, base)
        if isinstance(key, str) and isinstance(value, ClaimRef):
            self._volumes_by_claim.setdefault(value.claim, set()).add(key)

    def drop(self, key: VolumeReservationKey) -> None:
        """Nothing happens where nothing is promised."""
        promise = self.by_key.pop(key, None)
        if promise is not None and isinstance(key, str) and isinstance(promise.target, ClaimRef):
            volumes = self._volumes_by_claim[promise.target.claim]
            volumes.remove(key)
            if not volumes:
                del self._volumes_by_claim[promise.target.claim]

    def volumes_reserved_for(self, claim: VolumeClaimKey) -> Set[str]:
        """The names of the volumes that are promised to the claim."""
        return self._volumes_by_claim.get(claim, _NO_NAMES)
