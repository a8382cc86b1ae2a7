"""Disk conflicts, computed once for each distinct set of disks in use, and ReadWriteOncePod claims."""

from collections.abc import Hashable, Sequence

import numpy as np

from policysched.cluster.node_usage import UsedDisk
from policysched.cluster.volumes.binder import not_found_message
from policysched.evaluate.columns.column_kinds import DiskSetColumn
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View, map_codes
from policysched.evaluate.kernel import (
    ClusterContext,
    Dependency,
    FilterKernel,
    FilterKernelBase,
    KernelParams,
)
from policysched.model.identifiers import VolumeClaimKey
from policysched.model.pods import Pod
from policysched.model.storage import Disk

_DISK_CONFLICT = "node(s) had no available disk"
_READ_WRITE_ONCE_POD_CONFLICT = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"


def specialize_filter(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> FilterKernel | None:
    claims = tuple(use.claim for use in pod.claims if use.owner_pod is None)
    return _Filter(claims, pod.disks) if claims or pod.disks else None


class _Filter(FilterKernelBase):
    def __init__(self, claims: tuple[VolumeClaimKey, ...], disks: tuple[Disk, ...]) -> None:
        self._claims, self._disks = claims, disks
        self._conflicting = frozenset(  # two that only read do not conflict
            (identity, read_only)
            for disk in disks
            for identity in disk.identities
            for read_only in ((False,) if disk.read_only else (False, True))
        )
        self.depends_on = (
            Dependency.NODE | Dependency.USAGE | (Dependency.VOLUMES if claims else Dependency.NONE)
        )

    def rejected(self, view: View) -> Array:
        if self.prefilter(view) is not None or self._read_write_once_pod_conflict(view):
            return np.ones(view.count, np.bool_)
        return self._disk_conflict(view)

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        message = self.prefilter(view)
        if message is not None:
            return ((message, np.ones(view.count, np.bool_)),)
        taken = self._disk_conflict(view)
        return (
            (_DISK_CONFLICT, taken),
            (_READ_WRITE_ONCE_POD_CONFLICT, ~taken & self._read_write_once_pod_conflict(view)),
        )

    def unresolvable(self, view: View) -> Array:
        return np.full(view.count, self.prefilter(view) is not None)

    def prefilter(self, view: View) -> str | None:
        for key in self._claims:
            if view.available_volumes.claim(key) is None:
                return not_found_message("persistentvolumeclaim", key.name)
        return None

    def fingerprint(self, view: View) -> Hashable:
        volumes = view.available_volumes
        return tuple(
            (claim is None, self._is_read_write_once_pod(view, key), view.claim_uses(key) > 0)
            for key in self._claims
            for claim in [volumes.claim(key)]
        )

    def is_node_local(self, view: View) -> bool:
        """A ReadWriteOncePod claim is freed by deleting its pod on any node."""
        return not any(self._is_read_write_once_pod(view, key) for key in self._claims)

    def _read_write_once_pod_conflict(self, view: View) -> bool:
        return any(
            self._is_read_write_once_pod(view, key) and view.claim_uses(key) > 0 for key in self._claims
        )

    def _is_read_write_once_pod(self, view: View, key: VolumeClaimKey) -> bool:
        claim = view.available_volumes.claim(key)
        return claim is not None and "ReadWriteOncePod" in claim.access_modes

    def _disk_conflict(self, view: View) -> Array:
        if not self._disks:
            return np.zeros(view.count, np.bool_)
        codes = view.column(DiskSetColumn())
        return map_codes(codes, view.codes.disks.values, self._conflicts_with_any, np.bool_)

    def _conflicts_with_any(self, used_disks: frozenset[UsedDisk]) -> bool:
        return not self._conflicting.isdisjoint(used_disks)
