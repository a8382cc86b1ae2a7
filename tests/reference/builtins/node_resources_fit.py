"""Filter: one more pod, and each requested resource, must fit into what the node can allocate less what is requested
on it, but for extended resources that `ignored_resources` or `ignored_resource_groups` (what stands before the slash) name.
A request that exceeds even the allocatable amount cannot be helped by evicting. Where the policy has `filter dynamic_resources`,
an extended resource that the node does not offer and for which a DeviceClass stands is left to that.

Score, by `strategy`, the weighted mean over `resources` (a resource of which the node has none is left out, and so is
an extended one that the pod does not request; of one that is left to devices, devices are counted). cpu and memory count 100m and 200 MiB for containers that name none.

- `least_allocated`: `floor(100 * (capacity - requested) / capacity)`, 0 where more is requested than there is; the
  mean is rounded down.
- `most_allocated`: `floor(100 * requested / capacity)`, at most 100; the mean is rounded down.
- `requested_to_capacity_ratio`: the utilisation `floor(100 * requested / capacity)`, 100 where more is requested than
  there is, read off the straight lines between the points of `shape` (times 10, rounded toward zero); the mean, over
  the resources that score above 0, is rounded half up.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod
from tests.reference.builtin_interface import (
    MAX_SCORE,
    BuiltinParams,
    ClusterFacts,
    FilterReasons,
    NodeInfo,
    NodeScore,
)
from tests.reference.device_amounts import capacity_and_requested, device_class_for

_NATIVE_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_SHAPE_SCALE = 10  # the points of a shape score from 0 to 10


def refuse(pod: Pod, seen: NodeInfo, params: BuiltinParams, facts: ClusterFacts) -> FilterReasons | None:
    allocatable = seen.node.allocatable
    texts, resolvable = [], True
    if len(seen.usage.pods) + 1 > allocatable.get("pods", 0):
        texts.append("Too many pods")
    for resource in requested_resources(pod.requests):
        if _is_ignored(resource, params) or device_class_for(pod, seen, resource, facts) is not None:
            continue
        wanted = pod.requests[resource]
        if wanted > allocatable.get(resource, 0) - seen.usage.requested_capped(resource):
            texts.append(f"Insufficient {resource}")
            resolvable = resolvable and wanted <= allocatable.get(resource, 0)
    return FilterReasons(tuple(texts), resolvable) if texts else None


def _is_ignored(resource: str, params: BuiltinParams) -> bool:
    """Extended resources alone can be: those with a group in front, which is not Kubernetes' own."""
    group, slash, _ = resource.partition("/")
    named, groups = params["ignored_resources"], params["ignored_resource_groups"]
    assert isinstance(named, frozenset) and isinstance(groups, frozenset), (
        f"lists of names, not {named!r}, {groups!r}"
    )
    extended = slash == "/" and "kubernetes.io/" not in resource and not resource.startswith("requests.")
    return extended and (resource in named or group in groups)


def requested_resources(requests: Mapping[str, int]) -> list[str]:
    """The resources really requested: kube-scheduler's native ones first, then the others by name."""
    asked = {resource for resource, amount in requests.items() if amount > 0}
    return [one for one in _NATIVE_RESOURCES if one in asked] + sorted(asked.difference(_NATIVE_RESOURCES))


def score(
    pod: Pod, candidates: Sequence[NodeInfo], params: BuiltinParams, facts: ClusterFacts
) -> Mapping[NodeName, NodeScore] | None:
    rate = _STRATEGIES[str(params["strategy"])]
    scores = {}
    for seen in candidates:
        mean = rate(_shares(pod, seen, params, facts), params)
        scores[seen.node.name] = NodeScore(mean, mean)
    return scores


@dataclass(frozen=True, slots=True)
class _Share:
    """One resource of a node: what would be requested with the pod on it, of how much, and how much that matters."""

    requested: int
    capacity: int
    weight: int


def _shares(pod: Pod, seen: NodeInfo, params: BuiltinParams, facts: ClusterFacts) -> list[_Share]:
    shares = []
    for resource, weight in _pairs(params["resources"]):
        capacity, held = capacity_and_requested(pod, seen, resource, facts)
        if capacity == 0:
            continue
        match resource:
            case "cpu":
                requested = seen.usage.scoring_cpu_milli + pod.scoring_requests[0]
            case "memory":
                requested = seen.usage.scoring_memory_bytes + pod.scoring_requests[1]
            case _:
                wanted = pod.requests.get(resource, 0)
                if wanted == 0 and resource != "ephemeral-storage":
                    continue
                requested = held + wanted
        shares.append(_Share(requested, capacity, weight))
    return shares


def _least_allocated(shares: list[_Share], params: BuiltinParams) -> int:
    def free(share: _Share) -> int:
        return max(0, share.capacity - share.requested) * MAX_SCORE // share.capacity

    return _mean_rounded_down(shares, free)


def _most_allocated(shares: list[_Share], params: BuiltinParams) -> int:
    def used(share: _Share) -> int:
        return min(share.capacity, share.requested) * MAX_SCORE // share.capacity

    return _mean_rounded_down(shares, used)


def _requested_to_capacity_ratio(shares: list[_Share], params: BuiltinParams) -> int:
    points = [(at, height * _SHAPE_SCALE) for at, height in _points(params["shape"])]
    rated = []
    for share in shares:
        over = share.requested > share.capacity
        utilization = MAX_SCORE if over else share.requested * MAX_SCORE // share.capacity
        rated.append((_height(points, utilization), share.weight))
    counted = [(height, weight) for height, weight in rated if height > 0]
    weights = sum(weight for _, weight in counted)
    if weights == 0:
        return 0
    return math.floor(sum(height * weight for height, weight in counted) / weights + 0.5)


def _height(points: list[tuple[int, int]], at: int) -> int:
    """The height of the line through the points, level before the first and behind the last."""
    if at <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in pairwise(points):
        if at <= right:
            return low + int((high - low) * (at - left) / (right - left))
    return points[-1][1]


def _mean_rounded_down(shares: list[_Share], rate: Callable[[_Share], int]) -> int:
    weights = sum(share.weight for share in shares)
    return sum(rate(share) * share.weight for share in shares) // weights if weights else 0


_STRATEGIES: dict[str, Callable[[list[_Share], BuiltinParams], int]] = {
    "least_allocated": _least_allocated,
    "most_allocated": _most_allocated,
    "requested_to_capacity_ratio": _requested_to_capacity_ratio,
}


def _pairs(value: object) -> list[tuple[str, int]]:
    assert isinstance(value, tuple), f"a map of weights, not {value!r}"
    return [(str(resource), int(weight)) for resource, weight in value]


def _points(value: object) -> list[tuple[int, int]]:
    assert isinstance(value, tuple) and value, f"the points of a shape, not {value!r}"
    return sorted((int(at), int(height)) for at, height in value)
