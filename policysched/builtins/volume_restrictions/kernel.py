"""Disks that cannot be shared, asked once a distinct set of disks in use, and claims for one pod alone."""

from collections.abc import Hashable, Sequence

import numpy as np

from policysched.cluster.volumes.claims import not_found
from policysched.evaluate.columns.column_kinds import DiskSet
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View, by_code
from policysched.evaluate.kernel import Around, FilterKernel, Params, PlainFilter, Touch
from policysched.model.objects import ClaimKey, Disk, Pod

_TAKEN = "node(s) had no available disk"
_IN_USE = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"


def bind_filter(pod: Pod, params: Params, around: Around) -> FilterKernel | None:
    claims = tuple(use.claim for use in pod.claims if use.made_for is None)
    return _Filter(claims, pod.disks) if claims or pod.disks else None


class _Filter(PlainFilter):
    def __init__(self, claims: tuple[ClaimKey, ...], disks: tuple[Disk, ...]) -> None:
        self._claims, self._disks = claims, disks
        self.touch = Touch.NODE | Touch.USAGE | (Touch.VOLUMES if claims else Touch.NOTHING)

    def refused(self, view: View) -> Array:
        if self.beforehand(view) is not None or self._in_use(view):
            return np.ones(view.count, np.bool_)
        return self._taken(view)

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        words = self.beforehand(view)
        if words is not None:
            return ((words, np.ones(view.count, np.bool_)),)
        taken = self._taken(view)
        return ((_TAKEN, taken), (_IN_USE, ~taken & self._in_use(view)))

    def unresolvable(self, view: View) -> Array:
        return np.full(view.count, self.beforehand(view) is not None)

    def beforehand(self, view: View) -> str | None:
        for key in self._claims:
            if view.stock.claim(key) is None:
                return not_found("persistentvolumeclaim", key.name)
        return None

    def fingerprint(self, view: View) -> Hashable:
        stock = view.stock
        return tuple(
            (claim is None, self._alone_in(view, key), view.claim_uses(key) > 0)
            for key in self._claims
            for claim in [stock.claim(key)]
        )

    def apart(self, view: View) -> bool:
        """Another pod's claim is freed on whatever node that pod is."""
        return not any(self._alone_in(view, key) for key in self._claims)

    def _in_use(self, view: View) -> bool:
        return any(self._alone_in(view, key) and view.claim_uses(key) > 0 for key in self._claims)

    def _alone_in(self, view: View, key: ClaimKey) -> bool:
        claim = view.stock.claim(key)
        return claim is not None and "ReadWriteOncePod" in claim.access_modes

    def _taken(self, view: View) -> Array:
        if not self._disks:
            return np.zeros(view.count, np.bool_)
        codes = view.column(DiskSet())
        return by_code(codes, view.codes.disks.values, self._clashes, np.bool_)

    def _clashes(self, held: frozenset[Disk]) -> bool:
        return any(_clash(wanted, one) for wanted in self._disks for one in held)


def _clash(wanted: Disk, held: Disk) -> bool:
    if wanted.kind != held.kind or wanted.name != held.name:
        return False
    if wanted.kind == "rbd" and wanted.monitors.isdisjoint(held.monitors):
        return False
    return not (wanted.read_only and held.read_only)
