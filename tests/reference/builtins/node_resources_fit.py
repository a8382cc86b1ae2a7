"""Filter: the node's allocatable minus what is requested on it fits one more pod and each requested
resource, except extended resources listed in `ignored_resources` or `ignored_resource_groups` (the
part before the slash). Eviction cannot help if the request exceeds the allocatable amount. If the
policy has `filter dynamic_resources`, an extended resource that the node does not offer and a
DeviceClass provides is left to that filter.

Score, by `strategy`: the weighted mean over `resources`. A resource that the node does not have is
left out, and so is an extended resource that the pod does not request. For an extended resource
provided by devices, devices are counted. A container without requests counts as 100m cpu and 200
MiB memory.

- `least_allocated`: `floor(100 * (capacity - requested) / capacity)`, 0 if more is requested than
  the capacity; the mean is rounded down.
- `most_allocated`: `floor(100 * requested / capacity)`, at most 100; the mean is rounded down.
- `requested_to_capacity_ratio`: the utilization `floor(100 * requested / capacity)`, at most 100,
  mapped by linear interpolation between the points of `shape` (times 10, rounded toward zero); the
  mean over the resources that score above 0 is rounded half up.
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


def filter_node(
    pod: Pod, node_info: NodeInfo, params: BuiltinParams, facts: ClusterFacts
) -> FilterReasons | None:
    allocatable = node_info.node.allocatable
    texts, resolvable = [], True
    if len(node_info.usage.pods) + 1 > allocatable.get("pods", 0):
        texts.append("Too many pods")
    for resource in requested_resources(pod.requests):
        if _is_ignored(resource, params) or device_class_for(pod, node_info, resource, facts) is not None:
            continue
        wanted = pod.requests[resource]
        if wanted > allocatable.get(resource, 0) - node_info.usage.requested_capped(resource):
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
    requested = {resource for resource, amount in requests.items() if amount > 0}
    return [resource for resource in _NATIVE_RESOURCES if resource in requested] + sorted(
        requested.difference(_NATIVE_RESOURCES)
    )


def score(
    pod: Pod, candidates: Sequence[NodeInfo], params: BuiltinParams, facts: ClusterFacts
) -> Mapping[NodeName, NodeScore] | None:
    rate = _STRATEGIES[str(params["strategy"])]
    scores = {}
    for node_info in candidates:
        mean = rate(_shares(pod, node_info, params, facts), params)
        scores[node_info.node.name] = NodeScore(mean, mean)
    return scores


@dataclass(frozen=True, slots=True)
class _Share:
    """One resource of a node: what would be requested with the pod on it, of how much, and how much
    that matters."""

    requested: int
    capacity: int
    weight: int


def _shares(pod: Pod, node_info: NodeInfo, params: BuiltinParams, facts: ClusterFacts) -> list[_Share]:
    shares = []
    for resource, weight in _pairs(params["resources"]):
        capacity, held = capacity_and_requested(pod, node_info, resource, facts)
        if capacity == 0:
            continue
        match resource:
            case "cpu":
                requested = node_info.usage.scoring_cpu_milli + pod.scoring_requests[0]
            case "memory":
                requested = node_info.usage.scoring_memory_bytes + pod.scoring_requests[1]
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
    rated = []
    for share in shares:
        over = share.requested > share.capacity
        utilization = MAX_SCORE if over else share.requested * MAX_SCORE // share.capacity
        rated.append((shape_score(params["shape"], utilization), share.weight))
    counted = [(height, weight) for height, weight in rated if height > 0]
    weights = sum(weight for _, weight in counted)
    if weights == 0:
        return 0
    return math.floor(sum(height * weight for height, weight in counted) / weights + 0.5)


def shape_score(shape: object, at: int) -> int:
    """The height of the line through the points of the shape (times 10), level before the first and
    behind the last.
    """
    points = [(utilization, height * _SHAPE_SCALE) for utilization, height in _points(shape)]
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
