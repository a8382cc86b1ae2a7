"""Attach limits of CSI drivers: one vector for each limited driver of the pod's volumes."""

from collections.abc import Hashable, Sequence

import numpy as np

from policysched.cluster.volumes.binder import not_found_message
from policysched.evaluate.columns.column_kinds import VolumeLimitColumn
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import (
    ClusterContext,
    Dependency,
    FilterKernel,
    FilterKernelBase,
    KernelParams,
)
from policysched.model.pods import Pod
from policysched.model.storage import CsiVolume

_MAX_VOLUME_COUNT_EXCEEDED = "node(s) exceed max volume count"


def specialize_filter(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> FilterKernel | None:
    return _Filter(pod) if pod.claims or pod.mounts else None


class _Filter(FilterKernelBase):
    depends_on = Dependency.NODE | Dependency.USAGE | Dependency.VOLUMES
    reason = _MAX_VOLUME_COUNT_EXCEEDED
    resolvable = True

    def __init__(self, pod: Pod) -> None:
        self._pod = pod

    def rejected(self, view: View) -> Array:
        if self._missing_claim_message(view) is not None:
            return np.ones(view.count, np.bool_)
        exceeded = np.zeros(view.count, np.bool_)
        own: dict[str, list[CsiVolume]] = {}
        for mount in view.available_volumes.csi_volumes_of(self._pod):
            own.setdefault(mount.driver, []).append(mount)
        for driver, mounts in own.items():
            limit = view.column(VolumeLimitColumn(driver))
            if limit.any():
                counts, new = view.attached_volume_counts(driver, mounts)
                exceeded |= (limit > 0) & (new > 0) & (counts + new >= limit)
        return exceeded

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        return ((self._missing_claim_message(view) or _MAX_VOLUME_COUNT_EXCEEDED, self.rejected(view)),)

    def unresolvable(self, view: View) -> Array:
        return np.full(view.count, self._missing_claim_message(view) is not None)

    def fingerprint(self, view: View) -> Hashable:
        return self._missing_claim_message(view), view.available_volumes.csi_volumes_stamp

    def _missing_claim_message(self, view: View) -> str | None:
        for use in self._pod.claims:
            if view.available_volumes.claim(use.claim) is None:
                message = not_found_message("persistentvolumeclaim", use.claim.name)
                return f"looking up PVC {use.claim.namespace}/{use.claim.name}: {message}"
        return None
