"""Balanced allocation: how much more evenly the node's resources are used with the pod than without
it.

Source of the formula: kubernetes v1.37
`pkg/scheduler/framework/plugins/noderesources/balanced_allocation.go`. Sums are added in its order,
since their last bit can decide between two scores.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from policysched.builtins.device_amounts import (
    capacity_and_requested,
    device_backed_resources,
    device_change_stamps,
)
from policysched.cluster.node_usage import REQUESTED_MAX
from policysched.evaluate.columns.column_kinds import AllocatableColumn, RequestedColumn
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.saturating_arithmetic import all_true
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import (
    MAX_SCORE,
    ClusterContext,
    Dependency,
    KernelParams,
    ScoreKernel,
    ScoreKernelBase,
)
from policysched.model.pods import Pod

COLUMNS = (
    *(AllocatableColumn(resource) for resource in ("cpu", "memory")),
    *(RequestedColumn(resource) for resource in ("cpu", "memory")),
)
_ALWAYS_COUNTED = ("cpu", "memory", "ephemeral-storage")
_HALF = MAX_SCORE // 2


def specialize_score(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> ScoreKernel | None:
    weights = params["resources"]
    assert isinstance(weights, tuple), f"resources is {weights!r}"
    resources = [str(resource) for resource, _ in weights]
    if not any(pod.requests.get(resource, 0) for resource in resources):
        return None
    counted = [
        resource for resource in resources if resource in _ALWAYS_COUNTED or pod.requests.get(resource, 0)
    ]
    requests = [(resource, min(pod.requests.get(resource, 0), REQUESTED_MAX)) for resource in counted]
    devices = device_backed_resources(pod, cluster_context)
    return (
        _BalanceChangeScore(requests, devices)
        if params["formula"] == "change"
        else _BalanceScore(requests, devices)
    )


class _BalanceScore(ScoreKernelBase):
    """How evenly the resources are used with the pod."""

    depends_on = Dependency.NODE | Dependency.USAGE

    def __init__(self, wanted: Sequence[tuple[str, int]], devices: Sequence[str]) -> None:
        self._requests = [
            (
                AllocatableColumn(resource),
                RequestedColumn(resource),
                amount,
                resource if resource in devices else "",
            )
            for resource, amount in wanted
        ]
        self._device_resources = [resource for *_, resource in self._requests if resource]
        if self._device_resources:
            self.depends_on |= Dependency.CLUSTER

    def fingerprint(self, view: View) -> Hashable:
        return device_change_stamps(view, self._device_resources)

    def raw(self, view: View) -> Array:
        return self._balances(view, {"with the pod": True})["with the pod"]

    def _balances(self, view: View, variants: Mapping[str, bool]) -> dict[str, Array]:
        """The balance of every row, by name: with the pod or without it."""
        capacity_masks: list[Array] = []
        fractions: dict[str, list[Array]] = {name: [] for name in variants}
        for allocatable, requested, amount, devices in self._requests:
            capacity, used = capacity_and_requested(view, allocatable, requested, devices)
            capacity_masks.append(capacity > 0)
            divisor = capacity if all_true(capacity_masks[-1]) else np.maximum(capacity, 1)
            for name, with_pod in variants.items():
                total = used + amount if with_pod else used
                fractions[name].append(np.minimum(total / divisor, 1.0))
        if all(all_true(mask) for mask in capacity_masks):
            return {name: _balance(by_resource, view.count) for name, by_resource in fractions.items()}
        return {
            name: _balance_by_resource_pattern(by_resource, capacity_masks, view.count)
            for name, by_resource in fractions.items()
        }


class _BalanceChangeScore(_BalanceScore):
    """The change of the balance that the pod causes."""

    def raw(self, view: View) -> Array:
        scores = self._balances(view, {"with": True, "without": False})
        return _HALF + (_HALF + scores["with"] - scores["without"]) // 2


def _balance_by_resource_pattern(
    fractions: Sequence[Array], capacity_masks: Sequence[Array], count: int
) -> Array:
    """Computes nodes that have the same resources together; a cluster has few such groups."""
    pattern = sum(
        (mask.astype(np.int64) << index for index, mask in enumerate(capacity_masks)),
        np.zeros(count, np.int64),
    )
    balances = np.zeros(count, np.int64)
    for bits in set(pattern.tolist()):
        rows = np.flatnonzero(pattern == bits)
        balances[rows] = _balance(
            [fractions[index][rows] for index in range(len(capacity_masks)) if bits >> index & 1], len(rows)
        )
    return balances


def _balance(fractions: Sequence[Array], count: int) -> Array:
    """`int(100 * (1 - deviation))` per row, over the resources that the node has."""
    return _scaled(_deviation(fractions, count))


def _scaled(deviation: Array) -> Array:
    return ((1 - deviation) * MAX_SCORE).astype(np.int64)


def _deviation(fractions: Sequence[Array], count: int) -> Array:
    if len(fractions) < 2:
        return np.zeros(count)
    if len(fractions) == 2:
        return np.abs((fractions[0] - fractions[1]) / 2)
    mean = _sum_in_order(fractions, count) / len(fractions)
    squares = [(fraction - mean) * (fraction - mean) for fraction in fractions]
    return np.asarray(np.sqrt(_sum_in_order(squares, count) / len(fractions)))


def _sum_in_order(terms: Sequence[Array], count: int) -> Array:
    total = np.zeros(count)
    for term in terms:
        total = total + term
    return total
