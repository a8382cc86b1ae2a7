"""Requests against what is left, and how full the node would be, over int64 columns.

Source of the formulas: kubernetes v1.36 `pkg/scheduler/framework/plugins/noderesources` (`fit.go`,
`least_allocated.go`, `most_allocated.go`, `requested_to_capacity_ratio.go`, `helper/shape_score.go`).
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise

import numpy as np

from policysched.builtins.device_amounts import (
    capacity_and_requested,
    device_backed_resources,
    device_change_stamps,
)
from policysched.evaluate.columns.column_kinds import (
    Allocatable,
    ColumnKind,
    PodCount,
    Requested,
    ScoringRequested,
)
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.saturating_arithmetic import all_true, percent
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import (
    MAX_SCORE,
    ClusterContext,
    Dependency,
    FilterKernel,
    FilterKernelBase,
    KernelParams,
    ScoreKernel,
    ScoreKernelBase,
)
from policysched.model.pods import Pod

COLUMNS = (
    PodCount(),
    *(Allocatable(resource) for resource in ("cpu", "memory", "pods")),
    *(Requested(resource) for resource in ("cpu", "memory")),
    *(ScoringRequested(resource) for resource in ("cpu", "memory")),
)
_STANDARD_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_SHAPE_SCALE = 10  # the points of a shape score from 0 to 10


def specialize_filter(pod: Pod, params: KernelParams, around: ClusterContext) -> FilterKernel | None:
    return NodeResourcesFitFilter(pod, params, around)


def specialize_score(pod: Pod, params: KernelParams, around: ClusterContext) -> ScoreKernel | None:
    return _Score(pod, params, around)


class NodeResourcesFitFilter(FilterKernelBase):
    depends_on = Dependency.NODE | Dependency.USAGE

    def __init__(self, pod: Pod, params: KernelParams, around: ClusterContext) -> None:
        self._device_resources = device_backed_resources(pod, around)
        if self._device_resources:
            self.depends_on |= Dependency.VOLUMES
        asked = {
            name for name, amount in pod.requests.items() if amount > 0 and not _is_ignored(name, params)
        }
        order = [one for one in _STANDARD_RESOURCES if one in asked] + sorted(
            asked.difference(_STANDARD_RESOURCES)
        )
        self._requests = [
            (resource, Allocatable(resource), Requested(resource), pod.requests[resource])
            for resource in order
        ]

    def refused(self, view: View) -> Array:
        refused = self._too_many_pods(view)
        for wanted in self._requests:
            refused |= self._insufficient(*wanted, view)
        return refused

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        full = ("Too many pods", self._too_many_pods(view))
        return [full, *((f"Insufficient {one[0]}", self._insufficient(*one, view)) for one in self._requests)]

    def unresolvable(self, view: View) -> Array:
        """Not even an empty node of this size would do."""
        found = np.zeros(view.count, np.bool_)
        for resource, allocatable, _, amount in self._requests:
            found |= self._except_device_backed(
                resource, view.column(allocatable) < amount, allocatable, view
            )
        return found

    def fingerprint(self, view: View) -> Hashable:
        return tuple(
            one for one in self._device_resources if view.available_devices.class_of_resource(one) is not None
        )

    def shortfall(self, view: View) -> dict[str, Array]:
        """int64[count] by resource: how much more has to be free for the pod; `pods` is one more pod. 0 and less: enough is."""
        found = {"pods": view.column(_POD_COUNT) + 1 - view.column(_PODS_MAX)}
        for resource, allocatable, requested, amount in self._requests:
            if resource in self._device_resources:
                continue  # it may come from devices
            found[resource] = amount - (view.column(allocatable) - view.column(requested))
        return found

    def _insufficient(
        self, resource: str, allocatable: ColumnKind, requested: ColumnKind, amount: int, view: View
    ) -> Array:
        refused = view.column(allocatable) - view.column(requested) < amount
        return self._except_device_backed(resource, refused, allocatable, view)

    def _except_device_backed(
        self, resource: str, refused: Array, allocatable: ColumnKind, view: View
    ) -> Array:
        """Where a class stands for the resource, only nodes that offer it themselves are judged by it."""
        if (
            resource in self._device_resources
            and view.available_devices.class_of_resource(resource) is not None
        ):
            return refused & (view.column(allocatable) > 0)
        return np.asarray(refused)

    def _too_many_pods(self, view: View) -> Array:
        return np.asarray(view.column(_POD_COUNT) >= view.column(_PODS_MAX))


def _is_ignored(resource: str, params: KernelParams) -> bool:
    """`ignoredResources` and `ignoredResourceGroups`: of extended resources alone, whatever else is named."""
    named, groups = params["ignored_resources"], params["ignored_resource_groups"]
    if not named and not groups:
        return False
    assert isinstance(named, frozenset) and isinstance(groups, frozenset), (
        f"names, not {named!r} and {groups!r}"
    )
    if "/" not in resource or "kubernetes.io/" in resource or resource.startswith("requests."):
        return False
    return resource in named or resource.split("/")[0] in groups


_POD_COUNT, _PODS_MAX = PodCount(), Allocatable("pods")


class _Score(ScoreKernelBase):
    depends_on = Dependency.NODE | Dependency.USAGE

    def __init__(self, pod: Pod, params: KernelParams, around: ClusterContext) -> None:
        devices = device_backed_resources(pod, around)
        self._device_resources: list[str] = []
        self._combine = _STRATEGIES[str(params["strategy"])]
        self._shape = shape_table(params["shape"])
        # ..., the pod's amount, weight, and whose devices may stand for it
        self._scored_resources: list[tuple[ColumnKind, ColumnKind, int, int, str]] = []
        for resource, weight in _resource_weights(params["resources"]):
            capacity, amount = Allocatable(resource), pod.requests.get(resource, 0)
            if resource in ("cpu", "memory"):
                amount = pod.scoring_requests[resource == "memory"]
                self._scored_resources.append((capacity, ScoringRequested(resource), amount, weight, ""))
            elif amount or resource == "ephemeral-storage":
                given = resource if resource in devices else ""
                self._scored_resources.append((capacity, Requested(resource), amount, weight, given))
                if given:
                    self._device_resources.append(given)
        if self._device_resources:
            self.depends_on |= Dependency.CLUSTER

    def raw(self, view: View) -> Array:
        shares = []
        for capacity_kind, held_kind, amount, weight, devices in self._scored_resources:
            capacity, held = capacity_and_requested(view, capacity_kind, held_kind, devices)
            shares.append((held + amount, capacity, weight))
        return self._combine(shares, self._shape, view.count)

    def fingerprint(self, view: View) -> Hashable:
        return device_change_stamps(view, self._device_resources)


WeightedUsages = Sequence[tuple[Array, Array, int]]
"""Requested with the pod, capacity, weight, for each resource."""


def _least_allocated(shares: WeightedUsages, shape: Array, count: int) -> Array:
    return _weighted_mean(shares, count, lambda wanted, capacity: np.maximum(capacity - wanted, 0))


def _most_allocated(shares: WeightedUsages, shape: Array, count: int) -> Array:
    return _weighted_mean(shares, count, np.minimum)


def _weighted_mean(shares: WeightedUsages, count: int, part: Callable[[Array, Array], Array]) -> Array:
    total: Array = np.zeros(count, np.int64)
    weights: Array | int = 0
    for wanted, capacity, weight in shares:
        there = capacity > 0
        total = total + percent(part(wanted, capacity), capacity) * weight  # 0 where there is no capacity
        weights = weights + (weight if all_true(there) else there * weight)
    return np.asarray(total // (max(weights, 1) if isinstance(weights, int) else np.maximum(weights, 1)))


def _requested_to_capacity_ratio(shares: WeightedUsages, shape: Array, count: int) -> Array:
    """The mean over the resources that score above 0, rounded half up."""
    total, weights = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for wanted, capacity, weight in shares:
        utilization = percent(np.minimum(wanted, capacity), capacity)
        height = shape[utilization] * (capacity > 0)
        total += height * weight
        weights += (height > 0) * weight
    return np.floor(total / np.maximum(weights, 1) + 0.5).astype(np.int64)


_STRATEGIES: dict[str, Callable[[WeightedUsages, Array, int], Array]] = {
    "least_allocated": _least_allocated,
    "most_allocated": _most_allocated,
    "requested_to_capacity_ratio": _requested_to_capacity_ratio,
}


def shape_table(points: object) -> Array:
    """The score at each utilisation from 0 to 100: straight lines between the points, level outside them."""
    assert isinstance(points, tuple) and points, f"the points of a shape, not {points!r}"
    corners = sorted((int(at), int(height) * _SHAPE_SCALE) for at, height in points)
    return np.array([_interpolate(corners, at) for at in range(MAX_SCORE + 1)], np.int64)


def _interpolate(corners: list[tuple[int, int]], at: int) -> int:
    if at <= corners[0][0]:
        return corners[0][1]
    for (left, low), (right, high) in pairwise(corners):
        if at <= right:
            return low + int((high - low) * (at - left) / (right - left))
    return corners[-1][1]


def _resource_weights(weights: object) -> list[tuple[str, int]]:
    assert isinstance(weights, tuple), f"a map of weights, not {weights!r}"
    return [(str(resource), int(weight)) for resource, weight in weights]
