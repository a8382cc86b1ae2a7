"""Score: how much the pod improves the balance of the node's resources.

The balance of a node is `int(100 * (1 - s))`, with `s` the standard deviation of `requested /
allocatable` (at most 1) over `resources`. A resource that the node does not have is left out, and
so is an extended resource that the pod does not request. The score is `50 + floor((50 + balance
with the pod - balance without it) / 2)`, which is 75 for no change. With `formula = balance` the
score is the balance with the pod. A pod that requests none of the resources is not scored.
"""

import math
from collections.abc import Mapping, Sequence

from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod
from tests.reference.builtin_interface import (
    MAX_SCORE,
    BuiltinParams,
    ClusterFacts,
    NodeInfo,
    NodeScore,
)
from tests.reference.device_amounts import capacity_and_requested

_ALWAYS_COUNTED = ("cpu", "memory", "ephemeral-storage")
_HALF = MAX_SCORE // 2


def score(
    pod: Pod, candidates: Sequence[NodeInfo], params: BuiltinParams, facts: ClusterFacts
) -> Mapping[NodeName, NodeScore] | None:
    resources = _names(params["resources"])
    if not any(pod.requests.get(resource, 0) for resource in resources):
        return None
    counted = [
        resource for resource in resources if resource in _ALWAYS_COUNTED or pod.requests.get(resource, 0)
    ]
    scores = {}
    for node_info in candidates:
        amounts = {resource: capacity_and_requested(pod, node_info, resource, facts) for resource in counted}
        mark = _balance(amounts, pod.requests)
        if params["formula"] == "change":
            mark = _HALF + (_HALF + mark - _balance(amounts, {})) // 2
        scores[node_info.node.name] = NodeScore(mark, mark)
    return scores


def _balance(amounts: Mapping[str, tuple[int, int]], more: Mapping[str, int]) -> int:
    fractions = []
    for resource, (capacity, requested) in amounts.items():
        if capacity:
            fractions.append(min(1.0, (requested + more.get(resource, 0)) / capacity))
    return int((1 - _deviation(fractions)) * MAX_SCORE)


def _deviation(fractions: Sequence[float]) -> float:
    """The order of the additions matters to the last bit: that of `resources`, as kube-scheduler
    has it."""
    match fractions:
        case [] | [_]:
            return 0.0
        case [first, second]:
            return abs((first - second) / 2)
        case _:
            mean = sum_in_order(fractions) / len(fractions)
            return math.sqrt(
                sum_in_order([(fraction - mean) * (fraction - mean) for fraction in fractions])
                / len(fractions)
            )


def sum_in_order(numbers: Sequence[float]) -> float:
    """A plain running sum. Python's own `sum` of floats compensates for rounding from 3.12 on, Go's
    does not."""
    total = 0.0
    for number in numbers:
        total += number
    return total


def _names(value: object) -> list[str]:
    assert isinstance(value, tuple), f"a map of weights, not {value!r}"
    return [str(resource) for resource, _ in value]
