"""Attach limits of CSI drivers: one vector for each limited driver of the pod's volumes, and one for
each driver that the node must have.
"""

from collections.abc import Hashable, Sequence

import numpy as np

from policysched.cluster.volumes.binder import not_found_message
from policysched.evaluate.columns.column_kinds import CsiDriverColumn, VolumeLimitColumn
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
    if not pod.claims and not pod.mounts:
        return None
    return _Filter(pod, rejects_missing=params["missing_drivers"] == "reject")


class _Filter(FilterKernelBase):
    depends_on = Dependency.NODE | Dependency.USAGE | Dependency.VOLUMES
    reason = _MAX_VOLUME_COUNT_EXCEEDED
    resolvable = True

    def __init__(self, pod: Pod, *, rejects_missing: bool) -> None:
        self._pod = pod
        self._rejects_missing = rejects_missing

    def rejected(self, view: View) -> Array:
        return np.asarray(np.logical_or.reduce([mask for _, mask in self.reasons(view)]))

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        missing_claim = self._missing_claim_message(view)
        if missing_claim is not None:
            return ((missing_claim, np.ones(view.count, np.bool_)),)
        reasons, missing = [], np.zeros(view.count, np.bool_)
        for driver in self._needed_drivers(view):
            reasons.append(
                (
                    f"{driver} CSI driver is not installed on the node",
                    ~missing & ~view.column(CsiDriverColumn(driver)),
                )
            )
            missing = missing | reasons[-1][1]
        return (*reasons, (_MAX_VOLUME_COUNT_EXCEEDED, ~missing & self._exceeded(view)))

    def _exceeded(self, view: View) -> Array:
        exceeded = np.zeros(view.count, np.bool_)
        own_volumes: dict[str, list[CsiVolume]] = {}
        for mount in view.available_volumes.csi_volumes_of(self._pod):
            own_volumes.setdefault(mount.driver, []).append(mount)
        for driver, mounts in own_volumes.items():
            limit = view.column(VolumeLimitColumn(driver))
            if limit.any():
                counts, new = view.attached_volume_counts(driver, mounts)
                exceeded |= (limit > 0) & (new > 0) & (counts + new >= limit)
        return exceeded

    def unresolvable(self, view: View) -> Array:
        return np.full(view.count, self._missing_claim_message(view) is not None)

    def fingerprint(self, view: View) -> Hashable:
        return (
            self._missing_claim_message(view),
            view.available_volumes.csi_volumes_stamp,
            self._needed_drivers(view),
        )

    def _needed_drivers(self, view: View) -> tuple[str, ...]:
        return view.available_volumes.needed_drivers(self._pod) if self._rejects_missing else ()

    def _missing_claim_message(self, view: View) -> str | None:
        for use in self._pod.claims:
            if view.available_volumes.claim(use.claim) is None:
                message = not_found_message("persistentvolumeclaim", use.claim.name)
                return f"looking up PVC {use.claim.namespace}/{use.claim.name}: {message}"
        return None
