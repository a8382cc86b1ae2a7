"""Score by storage capacity: how much of the storage at the node the pod's unbound claims would use.

Source of the formula: kubernetes v1.37 `pkg/scheduler/framework/plugins/volumebinding` (`scorer.go`).
"""

from collections.abc import Hashable

import numpy as np

from policysched.builtins.volume_binding.matching import (
    can_provision,
    find_matching_volumes,
    provisionable_bytes,
    split_delayed,
)
from policysched.cluster.volumes.binder import PodVolumeClaims, pod_volume_claims
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import MAX_SCORE, Dependency, ScoreKernelBase
from policysched.model.pods import Pod
from policysched.model.storage import PersistentVolumeClaim


class StorageCapacityScore(ScoreKernelBase):
    """The mean over storage classes of the shape's value at `requested * 100 / capacity`. If any claim
    is bound to an existing volume, only such claims count.
    """

    depends_on = Dependency.NODE | Dependency.VOLUMES

    def __init__(self, pod: Pod, shape: Array) -> None:
        self._pod = pod
        self._shape = shape

    def raw(self, view: View) -> Array:
        claims = pod_volume_claims(self._pod, view.available_volumes)
        if isinstance(claims, str) or not claims.delayed:
            return np.zeros(view.count, np.int64)
        return self._of_delayed(claims, view)

    def fingerprint(self, view: View) -> Hashable:
        return view.available_volumes.stamps_of(self._pod)

    def _of_delayed(self, claims: PodVolumeClaims, view: View) -> Array:
        everywhere = np.ones(view.count, np.bool_)
        to_match, selected_nodes = split_delayed(claims.delayed, view.available_volumes)
        static = _ClassTotals(view.count)
        to_make = [(claim, everywhere) for claim, _ in selected_nodes]
        infeasible = np.zeros(view.count, np.bool_)  # they fail the filter, and have no score
        for match in find_matching_volumes(to_match, view, infeasible):
            static.add(match.claim, ~match.unmatched, match.capacity_bytes())
            to_make.append((match.claim, match.unmatched))
            if not can_provision(match.claim, view.available_volumes):
                infeasible |= match.unmatched
        dynamic = _ClassTotals(view.count)
        for claim, where in to_make:
            storage_class = view.available_volumes.storage_class(claim.class_name)
            assert storage_class is not None, f"{claim.key} is delayed and has no class"
            if claim.request_bytes is not None and view.available_volumes.tracks_capacity(
                storage_class.provisioner
            ):
                # Two claims of a class share its capacity, so it is not added up.
                dynamic.add(claim, where, None)
                dynamic.capacity[claim.class_name] = provisionable_bytes(storage_class.name, view)[:, 1]
        return np.where(static.any(), static.score(self._shape), dynamic.score(self._shape))


class _ClassTotals:
    """By storage class int64 by row: what claims request, and the capacity for it. `present`: the rows
    with a claim of the class.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._requested: dict[str, Array] = {}
        self._present: dict[str, Array] = {}
        self.capacity: dict[str, Array] = {}

    def add(self, claim: PersistentVolumeClaim, where: Array, capacity: Array | None) -> None:
        name, zeros = claim.class_name, np.zeros(self._count, np.int64)
        self._requested[name] = self._requested.get(name, zeros) + where * (claim.request_bytes or 0)
        self._present[name] = self._present.get(name, np.zeros(self._count, np.bool_)) | where
        if capacity is not None:
            self.capacity[name] = self.capacity.get(name, zeros) + capacity

    def any(self) -> Array:
        return np.asarray(np.logical_or.reduce([np.zeros(self._count, np.bool_), *self._present.values()]))

    def score(self, shape: Array) -> Array:
        """The mean of the classes, rounded half up; 0 without any."""
        total, classes = np.zeros(self._count, np.int64), np.zeros(self._count, np.int64)
        for name, present in self._present.items():
            requested, capacity = self._requested[name], self.capacity[name]
            utilization = requested * MAX_SCORE // np.maximum(capacity, 1)
            full = (capacity <= 0) | (requested > capacity)
            total += present * shape[np.where(full, MAX_SCORE, np.clip(utilization, 0, MAX_SCORE))]
            classes += present
        return np.asarray((2 * total + classes) // np.maximum(2 * classes, 1))
