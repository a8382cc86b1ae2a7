"""Volumes that CSI drivers can attach: a vector for each driver of the pod's volumes that some CSINode limits."""

from collections.abc import Hashable, Sequence

import numpy as np

from policysched.cluster.volumes.claims import not_found
from policysched.evaluate.columns.column_kinds import VolumeLimit
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import Around, FilterKernel, Params, PlainFilter, Touch
from policysched.model.objects import Mount, Pod

_TOO_MANY = "node(s) exceed max volume count"


def bind_filter(pod: Pod, params: Params, around: Around) -> FilterKernel | None:
    return _Filter(pod) if pod.claims or pod.mounts else None


class _Filter(PlainFilter):
    touch = Touch.NODE | Touch.USAGE | Touch.VOLUMES
    reason = _TOO_MANY
    resolvable = True

    def __init__(self, pod: Pod) -> None:
        self._pod = pod

    def refused(self, view: View) -> Array:
        if self._absent(view) is not None:
            return np.ones(view.count, np.bool_)
        found = np.zeros(view.count, np.bool_)
        own: dict[str, list[Mount]] = {}
        for mount in view.stock.mounts_of(self._pod):
            own.setdefault(mount.driver, []).append(mount)
        for driver, mounts in own.items():
            limit = view.column(VolumeLimit(driver))
            if limit.any():
                counts, new = view.attached(driver, mounts)
                found |= (limit > 0) & (new > 0) & (counts + new >= limit)
        return found

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        return ((self._absent(view) or _TOO_MANY, self.refused(view)),)

    def unresolvable(self, view: View) -> Array:
        return np.full(view.count, self._absent(view) is not None)

    def fingerprint(self, view: View) -> Hashable:
        return self._absent(view), view.stock.mounts_stamp

    def _absent(self, view: View) -> str | None:
        for use in self._pod.claims:
            if view.stock.claim(use.claim) is None:
                words = not_found("persistentvolumeclaim", use.claim.name)
                return f"looking up PVC {use.claim.namespace}/{use.claim.name}: {words}"
        return None
