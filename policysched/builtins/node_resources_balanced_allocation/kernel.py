"""How much more evenly the node's resources would be used with the pod than without it.

Source of the formula: kubernetes v1.36 `pkg/scheduler/framework/plugins/noderesources/balanced_allocation.go`. The
additions keep its order, for their last bit decides between two scores.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from policysched.builtins.device_amounts import (
    capacity_and_requested,
    device_backed_resources,
    device_change_stamps,
)
from policysched.evaluate.columns.column_kinds import Allocatable, Requested
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
    *(Allocatable(resource) for resource in ("cpu", "memory")),
    *(Requested(resource) for resource in ("cpu", "memory")),
)
_ALWAYS_COUNTED = ("cpu", "memory", "ephemeral-storage")
_HALF = MAX_SCORE // 2


def specialize_score(pod: Pod, params: KernelParams, around: ClusterContext) -> ScoreKernel | None:
    weights = params["resources"]
    assert isinstance(weights, tuple), f"a map of weights, not {weights!r}"
    resources = [str(resource) for resource, _ in weights]
    if not any(pod.requests.get(resource, 0) for resource in resources):
        return None
    counted = [one for one in resources if one in _ALWAYS_COUNTED or pod.requests.get(one, 0)]
    wanted = [(resource, pod.requests.get(resource, 0)) for resource in counted]
    devices = device_backed_resources(pod, around)
    return (
        _BalanceChangeScore(wanted, devices)
        if params["formula"] == "change"
        else _BalanceScore(wanted, devices)
    )


class _BalanceScore(ScoreKernelBase):
    """How evenly the resources are used with the pod."""

    depends_on = Dependency.NODE | Dependency.USAGE

    def __init__(self, wanted: Sequence[tuple[str, int]], devices: Sequence[str]) -> None:
        self._requests = [
            (Allocatable(resource), Requested(resource), amount, resource if resource in devices else "")
            for resource, amount in wanted
        ]
        self._device_resources = [given for *_, given in self._requests if given]
        if self._device_resources:
            self.depends_on |= Dependency.CLUSTER

    def fingerprint(self, view: View) -> Hashable:
        return device_change_stamps(view, self._device_resources)

    def raw(self, view: View) -> Array:
        return self._balances(view, {"with the pod": True})["with the pod"]

    def _balances(self, view: View, asked: Mapping[str, bool]) -> dict[str, Array]:
        """The balance of every row, with the pod or without it."""
        there: list[Array] = []
        fractions: dict[str, list[Array]] = {name: [] for name in asked}
        for allocatable, requested, amount, devices in self._requests:
            capacity, held = capacity_and_requested(view, allocatable, requested, devices)
            there.append(capacity > 0)
            divisor = capacity if all_true(there[-1]) else np.maximum(capacity, 1)
            for name, with_pod in asked.items():
                total = held + amount if with_pod else held
                fractions[name].append(np.minimum(total / divisor, 1.0))
        if all(all_true(one) for one in there):
            return {name: _balance(found, view.count) for name, found in fractions.items()}
        return {
            name: _balance_by_resource_pattern(found, there, view.count) for name, found in fractions.items()
        }


class _BalanceChangeScore(_BalanceScore):
    """How much better that is than without it."""

    def raw(self, view: View) -> Array:
        marks = self._balances(view, {"with": True, "without": False})
        return _HALF + (_HALF + marks["with"] - marks["without"]) // 2


def _balance_by_resource_pattern(fractions: Sequence[Array], there: Sequence[Array], count: int) -> Array:
    """Nodes that have the same resources are done together; in a cluster there are few such groups."""
    pattern = sum(
        (one.astype(np.int64) << place for place, one in enumerate(there)), np.zeros(count, np.int64)
    )
    found = np.zeros(count, np.int64)
    for bits in set(pattern.tolist()):
        rows = np.flatnonzero(pattern == bits)
        found[rows] = _balance(
            [fractions[place][rows] for place in range(len(there)) if bits >> place & 1], len(rows)
        )
    return found


def _balance(fractions: Sequence[Array], count: int) -> Array:
    """`int(100 * (1 - deviation))` a row, over the resources of which the node has any."""
    return _scaled(_deviation(fractions, count))


def _scaled(deviation: Array) -> Array:
    return ((1 - deviation) * MAX_SCORE).astype(np.int64)


def _deviation(fractions: Sequence[Array], count: int) -> Array:
    if len(fractions) < 2:
        return np.zeros(count)
    if len(fractions) == 2:
        return np.abs((fractions[0] - fractions[1]) / 2)
    mean = _sum_in_order(fractions, count) / len(fractions)
    squares = [(one - mean) * (one - mean) for one in fractions]
    return np.asarray(np.sqrt(_sum_in_order(squares, count) / len(fractions)))


def _sum_in_order(terms: Sequence[Array], count: int) -> Array:
    total = np.zeros(count)
    for one in terms:
        total = total + one
    return total
