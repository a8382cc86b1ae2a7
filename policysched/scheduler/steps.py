"""Long computations in steps, so that an attempt over many nodes does not delay everything else.

A long computation is a generator. It yields the cost of each piece of work, and returns its result. `Scheduler.decide`
limits the cost of one call; the cluster must not change before the generator ends. Costs are estimated from counts, not
measured, so that the same cluster gives the same steps. The unit is about 10 µs: removing a pod from an overlay or adding
it back, and evaluating what that changes.
"""

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

Value = TypeVar("Value")
Visited = TypeVar("Visited")
Steps = Generator[int, None, Value]

_NODES_PER_COST_UNIT = 50
OPERATIONS_PER_COST_UNIT = 500
DEVICE_STEPS_PER_COST_UNIT = 2
POD_OPERATIONS_PER_SLICE = 250
"""Operations for pods, not for pods and nodes, that are made at once: 5 ms, where they read long lists of the pod."""
POD_OPERATIONS_AT_ONCE_MAX = POD_OPERATIONS_PER_SLICE // 10
"""For a pod: half a millisecond. What takes longer for each of many pods is always in slices."""
_POD_OPERATION_COST = 2
VISITS_PER_PIECE = 50
NEW_CLASS_COST = 25
"""Of evaluating a pod that shares nothing with those before it, with the reasons of the nodes: beside `evaluation_cost`."""


def pods_per_slice(operations: int, pods_max: int) -> int:
    """For how many pods something of this static cost is computed at once."""
    return max(1, min(pods_max, POD_OPERATIONS_PER_SLICE // max(1, operations)))


def pod_operations_cost(operations: int) -> int:
    """The cost of computing something of this static cost for a pod. 0: it is cheap."""
    return operations * _POD_OPERATION_COST if operations > POD_OPERATIONS_AT_ONCE_MAX else 0


def evaluation_cost(node_count: int, operations: int = 0) -> int:
    """The cost of evaluating a pod on every node; `operations` is its `Evaluator.decision_cost`."""
    return 1 + max(node_count // _NODES_PER_COST_UNIT, operations // OPERATIONS_PER_COST_UNIT)


def run_to_completion(steps: Steps[Value]) -> Value:
    """Runs all steps at once. Returns the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Value = end.value
            return result


def visit_in_pieces(values: Sequence[Visited], visit: Callable[[Visited], object], cost: int) -> Steps[None]:
    """Each of the values in order. `cost`: of one visit."""
    for begin in range(0, len(values), VISITS_PER_PIECE):
        if begin:
            yield cost * VISITS_PER_PIECE
        for value in values[begin : begin + VISITS_PER_PIECE]:
            visit(value)
