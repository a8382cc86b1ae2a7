"""Requests against free resources, and scores by utilization, over int64 columns.

Source of the formulas: kubernetes v1.37 `pkg/scheduler/framework/plugins/noderesources` (`fit.go`,
`least_allocated.go`, `most_allocated.go`, `requested_to_capacity_ratio.go`,
`helper/shape_score.go`).
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise

import numpy as np

from policysched.builtins.device_amounts import (
    capacity_and_requested,
    device_backed_resources,
    device_change_stamps,
)
from policysched.cluster.node_usage import REQUESTED_MAX
from policysched.evaluate.columns.column_kinds import (
    AllocatableColumn,
    ColumnKind,
    PodCountColumn,
    RequestedColumn,
    ScoringRequestedColumn,
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
    shortfall_reason,
)
from policysched.model.pods import Pod

COLUMNS = (
    PodCountColumn(),
    *(AllocatableColumn(resource) for resource in ("cpu", "memory", "pods")),
    *(RequestedColumn(resource) for resource in ("cpu", "memory")),
    *(ScoringRequestedColumn(resource) for resource in ("cpu", "memory")),
)
_STANDARD_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_SHAPE_SCALE = 10  # points of a shape have scores from 0 to 10


def specialize_filter(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> FilterKernel | None:
    return NodeResourcesFitFilter(pod, params, cluster_context)


def specialize_score(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> ScoreKernel | None:
    return _Score(pod, params, cluster_context)


class NodeResourcesFitFilter(FilterKernelBase):
    depends_on = Dependency.NODE | Dependency.USAGE

    def __init__(self, pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> None:
        self._device_resources = device_backed_resources(pod, cluster_context)
        if self._device_resources:
            self.depends_on |= Dependency.VOLUMES
        resources = {
            name for name, amount in pod.requests.items() if amount > 0 and not _is_ignored(name, params)
        }
        order = [resource for resource in _STANDARD_RESOURCES if resource in resources] + sorted(
            resources.difference(_STANDARD_RESOURCES)
        )
        self._requests = [
            (resource, AllocatableColumn(resource), RequestedColumn(resource), pod.requests[resource])
            for resource in order
        ]

    def rejected(self, view: View) -> Array:
        rejected = self._too_many_pods(view)
        for request in self._requests:
            rejected |= self._insufficient(*request, view)
        return rejected

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        full = (shortfall_reason("pods"), self._too_many_pods(view))
        return [
            full,
            *(
                (shortfall_reason(request[0]), self._insufficient(*request, view))
                for request in self._requests
            ),
        ]

    def unresolvable(self, view: View) -> Array:
        """Where even the empty node would be too small."""
        too_small = np.zeros(view.count, np.bool_)
        for resource, allocatable, _, amount in self._requests:
            too_small |= self._except_device_backed(
                resource, view.column(allocatable) < amount, allocatable, view
            )
        return too_small

    def repeated_on_new_node(self, view: View) -> Array:
        return self.unresolvable(view)

    def fingerprint(self, view: View) -> Hashable:
        return tuple(
            resource
            for resource in self._device_resources
            if view.available_devices.class_of_resource(resource) is not None
        )

    def shortfall(self, view: View) -> dict[str, Array]:
        """Resources that devices may back are left out."""
        shortfalls = {"pods": view.column(_POD_COUNT) + 1 - view.column(_PODS_MAX)}
        for resource, allocatable, requested, amount in self._requests:
            if resource in self._device_resources:
                continue  # devices may provide it
            free = view.column(allocatable) - view.column(requested)
            shortfalls[resource] = min(amount, REQUESTED_MAX) - free
        return shortfalls

    def _insufficient(
        self, resource: str, allocatable: ColumnKind, requested: ColumnKind, amount: int, view: View
    ) -> Array:
        if view.has_resource(resource):
            rejected = view.column(allocatable) - view.column(requested) < amount
        else:  # not even a column: a pod can request any number of resources that no node has
            rejected = np.ones(view.count, np.bool_)
        return self._except_device_backed(resource, rejected, allocatable, view)

    def _except_device_backed(
        self, resource: str, rejected: Array, allocatable: ColumnKind, view: View
    ) -> Array:
        """Where a DeviceClass maps the resource, only nodes that offer it themselves can be rejected
        for it.
        """
        if (
            resource in self._device_resources
            and view.available_devices.class_of_resource(resource) is not None
        ):
            return rejected & (view.column(allocatable) > 0)
        return np.asarray(rejected)

    def _too_many_pods(self, view: View) -> Array:
        return np.asarray(view.column(_POD_COUNT) >= view.column(_PODS_MAX))


def _is_ignored(resource: str, params: KernelParams) -> bool:
    """`ignoredResources` and `ignoredResourceGroups` apply to extended resources only."""
    named, groups = params["ignored_resources"], params["ignored_resource_groups"]
    if not named and not groups:
        return False
    assert isinstance(named, frozenset) and isinstance(groups, frozenset), (
        f"ignored resources are {named!r} and {groups!r}"
    )
    if "/" not in resource or "kubernetes.io/" in resource or resource.startswith("requests."):
        return False
    return resource in named or resource.split("/")[0] in groups


_POD_COUNT, _PODS_MAX = PodCountColumn(), AllocatableColumn("pods")


class _Score(ScoreKernelBase):
    depends_on = Dependency.NODE | Dependency.USAGE

    def __init__(self, pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> None:
        devices = device_backed_resources(pod, cluster_context)
        self._device_resources: list[str] = []
        self._combine = _STRATEGIES[str(params["strategy"])]
        self._shape = shape_table(params["shape"])
        # allocatable, requested, the pod's request, weight, and the resource if devices may back it
        self._scored_resources: list[tuple[ColumnKind, ColumnKind, int, int, str]] = []
        for resource, weight in _resource_weights(params["resources"]):
            capacity, amount = AllocatableColumn(resource), min(pod.requests.get(resource, 0), REQUESTED_MAX)
            if resource in ("cpu", "memory"):
                amount = min(pod.scoring_requests[resource == "memory"], REQUESTED_MAX)
                self._scored_resources.append(
                    (capacity, ScoringRequestedColumn(resource), amount, weight, "")
                )
            elif amount or resource == "ephemeral-storage":
                device_resource = resource if resource in devices else ""
                self._scored_resources.append(
                    (capacity, RequestedColumn(resource), amount, weight, device_resource)
                )
                if device_resource:
                    self._device_resources.append(device_resource)
        if self._device_resources:
            self.depends_on |= Dependency.CLUSTER

    def raw(self, view: View) -> Array:
        shares = []
        for capacity_kind, held_kind, amount, weight, devices in self._scored_resources:
            capacity, used = capacity_and_requested(view, capacity_kind, held_kind, devices)
            shares.append((used + amount, capacity, weight))
        return self._combine(shares, self._shape, view.count)

    def fingerprint(self, view: View) -> Hashable:
        return device_change_stamps(view, self._device_resources)


WeightedUsages = Sequence[tuple[Array, Array, int]]
"""For each resource: requested including the pod, capacity, weight."""


def _least_allocated(shares: WeightedUsages, shape: Array, count: int) -> Array:
    return _weighted_mean(shares, count, lambda requested, capacity: np.maximum(capacity - requested, 0))


def _most_allocated(shares: WeightedUsages, shape: Array, count: int) -> Array:
    return _weighted_mean(shares, count, np.minimum)


def _weighted_mean(shares: WeightedUsages, count: int, part: Callable[[Array, Array], Array]) -> Array:
    total: Array = np.zeros(count, np.int64)
    weights: Array | int = 0
    for requested, capacity, weight in shares:
        has_capacity = capacity > 0
        total = total + percent(part(requested, capacity), capacity) * weight  # 0 where there is no capacity
        weights = weights + (weight if all_true(has_capacity) else has_capacity * weight)
    return np.asarray(total // (max(weights, 1) if isinstance(weights, int) else np.maximum(weights, 1)))


def _requested_to_capacity_ratio(shares: WeightedUsages, shape: Array, count: int) -> Array:
    """The mean over the resources that score above 0, rounded half up."""
    total, weights = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for requested, capacity, weight in shares:
        utilization = percent(np.minimum(requested, capacity), capacity)
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
    """The score at each utilization from 0 to 100: linear between the points, constant outside
    them.
    """
    assert isinstance(points, tuple) and points, f"shape is {points!r}"
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
    assert isinstance(weights, tuple), f"resources is {weights!r}"
    return [(str(resource), int(weight)) for resource, weight in weights]
