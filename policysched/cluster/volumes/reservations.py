"""Reservations of volumes, from the assume of a pod until the watch shows the written objects.

    free ──reserve (a pod is assumed)──► reserved ──mark_written──► written ──the watch shows it──► dropped
      ▲                                     │ unreserve, or a version that another client wrote
      └─────────────────────────────────────┘

A reservation keeps a volume from being bound twice, and a claim from being provisioned on two
nodes. A version that another client wrote drops it: the API server decides. Source: the assume
caches of kube-scheduler's VolumeBinding.
"""

from collections.abc import Set
from dataclasses import dataclass, field, replace

from policysched.model.identifiers import NodeName, PodUid, VolumeClaimKey
from policysched.model.storage import ClaimRef, PersistentVolume, PersistentVolumeClaim

_NO_NAMES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class VolumeChoice:
    """What a pod's claims need on its node: bindings to existing volumes, and volumes to provision.
    False if nothing.

    Upstream: `PodVolumes`."""

    static_bindings: tuple[tuple[PersistentVolumeClaim, PersistentVolume], ...] = ()
    dynamic_provisions: tuple[PersistentVolumeClaim, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.static_bindings or self.dynamic_provisions)

    @property
    def reservation_keys(self) -> "tuple[VolumeReservationKey, ...]":
        """What it reserves: volumes by name, and claims whose volumes are provisioned."""
        return (
            *(volume.name for _, volume in self.static_bindings),
            *(claim.key for claim in self.dynamic_provisions),
        )


@dataclass(frozen=True, slots=True)
class VolumeReservation:
    """`target` is reserved for `pods`, which share the claim. `base_version`: the version of the
    object when it was reserved. `written_version`: the version that this scheduler wrote, if it
    did."""

    pods: frozenset[PodUid]
    target: ClaimRef | NodeName
    base_version: int
    written_version: int | None = None

    def is_superseded(self, version: int) -> bool:
        return (
            version != self.base_version if self.written_version is None else version >= self.written_version
        )


VolumeReservationKey = str | VolumeClaimKey
"""A volume by its name, or a claim whose volume is provisioned for a node."""


@dataclass(slots=True)
class VolumeReservations:
    """`by_key` is read only. `add_count` counts calls of `add`."""

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
        reservation = self.by_key.get(key)
        if reservation is not None and reservation.target == value:
            self.by_key[key] = replace(reservation, pods=reservation.pods | {pod})
            return
        if reservation is not None:
            self.drop(key)
        self.by_key[key] = VolumeReservation(frozenset({pod}), value, base)
        if isinstance(key, str) and isinstance(value, ClaimRef):
            self._volumes_by_claim.setdefault(value.claim, set()).add(key)

    def drop(self, key: VolumeReservationKey) -> None:
        """No-op if nothing is reserved."""
        reservation = self.by_key.pop(key, None)
        if reservation is not None and isinstance(key, str) and isinstance(reservation.target, ClaimRef):
            volumes = self._volumes_by_claim[reservation.target.claim]
            volumes.remove(key)
            if not volumes:
                del self._volumes_by_claim[reservation.target.claim]

    def volumes_reserved_for(self, claim: VolumeClaimKey) -> Set[str]:
        """The names of the volumes that are reserved for the claim."""
        return self._volumes_by_claim.get(claim, _NO_NAMES)
