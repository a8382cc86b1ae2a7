"""Computes a pod's resource requests and limits as kube-scheduler does.

Containers add up; a sidecar (an init container that restarts) runs beside all containers after it; any other init
container runs alone with the sidecars before it. The larger of the two phases counts, and overhead is added. Pod-level
resources replace the sum. Source: `k8s.io/component-helpers/resource` (`PodRequests`, `PodLimits`), and
for the requests assumed in scoring `pkg/scheduler/util/pod_resources.go`.

A pod may be resized in place. Until its kubelet has done so, the largest of three sums counts: of what the spec
wants, of what the kubelet has allocated and of what the containers have. A resize that the kubelet calls infeasible
never happens on this node, so the spec does not count. The same holds for pod-level resources. These are the rules of
kube-scheduler 1.37; 1.36 adds up the largest amount of each container, which is never less.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from policysched.kube.decode.errors import InvalidField
from policysched.model.quantity import INT64_MAX, parse_milli_units, parse_whole_units

Json = Mapping[str, Any]
ResourceAmounts = dict[str, int]

DEFAULT_SCORING_CPU_MILLI = 100
DEFAULT_SCORING_MEMORY_BYTES = 200 * 1024 * 1024
_POD_LEVEL = ("cpu", "memory")


@dataclass(frozen=True, slots=True)
class PodResources:
    """`requests` and `limits` by resource; `scoring` is (cpu milli, memory bytes) with defaults for containers without
    requests, `scoring_on_node` the same once the pod is on a node; `qos` is 0 BestEffort, 1 Burstable, 2 Guaranteed."""

    requests: ResourceAmounts
    limits: ResourceAmounts
    scoring: tuple[int, int]
    scoring_on_node: tuple[int, int]
    qos: int


@dataclass(frozen=True, slots=True)
class _ResizeStatus:
    """What the kubelet reports about one container, or the pod: its actual resources, and its allocated requests. None:
    not reported. `has_resources`: the status has resources, even if empty."""

    requests: ResourceAmounts | None = None
    limits: ResourceAmounts | None = None
    allocated: ResourceAmounts | None = None
    has_resources: bool = False


_NOT_REPORTED = _ResizeStatus()


@dataclass(frozen=True, slots=True)
class _Container:
    """`requests` and `limits` are those of the spec; the others come from the status, or else are what counts instead."""

    requests: ResourceAmounts
    limits: ResourceAmounts
    sidecar: bool
    allocated: ResourceAmounts
    actual_requests: ResourceAmounts
    actual_limits: ResourceAmounts


def decode_resource_list(amounts: Json | None, field: str) -> ResourceAmounts:
    """A ResourceList as integers: cpu in milli-units, all else in base units, rounded up."""
    result: ResourceAmounts = {}
    for resource, quantity in (amounts or {}).items():
        text = quantity if isinstance(quantity, str) else str(quantity)
        try:
            result[resource] = parse_milli_units(text) if resource == "cpu" else parse_whole_units(text)
        except ValueError as error:
            raise InvalidField(f"{field}.{resource}", str(error)) from error
        if result[resource] < 0:
            raise InvalidField(f"{field}.{resource}", f"`{text[:64]}` is negative")
    return result


def decode_pod_resources(spec: Json, status: Json) -> PodResources:
    """The resources of a pod. Raises InvalidField.

    Cached by all inputs, since replicas have equal ones: the result is computed and stored once for all of them. Long inputs
    are not kept, so that pods with thousands of resources do not fill the memory.
    """
    try:
        key = orjson.dumps(
            (
                resource_status(status),
                [_container_key(container) for container in spec.get("containers") or ()],
                [_container_key(container) for container in spec.get("initContainers") or ()],
                spec.get("overhead"),
                spec.get("resources"),
            )
        )
    except orjson.JSONEncodeError:  # a file may have numbers beyond the range of orjson
        return _compute_pod_resources(spec, status)
    if len(key) > _CACHED_BYTES_MAX:
        return _compute_pod_resources(spec, status)
    resources = _cache.get(key)
    if resources is None:
        resources = _compute_pod_resources(spec, status)
        if len(_cache) >= _CACHE_MAX:
            _cache.clear()
        _cache[key] = resources
    return resources


_CACHE_MAX, _CACHED_BYTES_MAX = 4096, 2048
_cache: dict[bytes, PodResources] = {}


def resource_status(status: Json) -> tuple[Any, ...]:
    """What a pod's resources depend on of its status."""
    return (
        [_resize_key(container) for container in status.get("containerStatuses") or ()],
        [_resize_key(container) for container in status.get("initContainerStatuses") or ()],
        status.get("resources"),
        status.get("allocatedResources"),
        _is_resize_infeasible(status),
        status.get("qosClass"),
    )


def _container_key(container: Json) -> tuple[Any, ...]:
    return container.get("name"), container.get("resources"), container.get("restartPolicy")


def _resize_key(container_status: Json) -> tuple[Any, ...]:
    return (
        container_status.get("name"),
        container_status.get("resources"),
        container_status.get("allocatedResources"),
    )


def _compute_pod_resources(spec: Json, status: Json) -> PodResources:
    infeasible = _is_resize_infeasible(status)
    containers = list(_containers(spec, "containers", status, infeasible=infeasible))
    inits = list(_containers(spec, "initContainers", status, infeasible=infeasible))
    of_pod = _resize_status(status, "status")
    overhead = decode_resource_list(spec.get("overhead"), "spec.overhead")
    pod_requests, pod_limits = _pod_level(spec, of_pod, infeasible=infeasible)

    def counted(assumed: ResourceAmounts) -> ResourceAmounts:
        return _counted_requests(containers, inits, of_pod, assumed, infeasible=infeasible)

    requests = {**counted({}), **pod_requests}
    limits = {**_counted_limits(containers, inits, of_pod, infeasible=infeasible), **pod_limits}
    # Pod-level requests are ignored while the pod is scored and counted on its node, as in kube-scheduler since 1.36:
    # the scorer of NodeResourcesFit is created without the feature, the node's totals with it.
    assumed = {"cpu": DEFAULT_SCORING_CPU_MILLI, "memory": DEFAULT_SCORING_MEMORY_BYTES}
    scoring = counted(assumed)
    if _pod_level_spec(spec)[0]:
        named = requests.keys() | overhead.keys()
        assumed = {resource: amount for resource, amount in assumed.items() if resource not in named}
    on_node = {**counted(assumed), **pod_requests}
    for resource, amount in overhead.items():
        requests[resource] = requests.get(resource, 0) + amount
        scoring[resource] = scoring.get(resource, 0) + amount
        on_node[resource] = on_node.get(resource, 0) + amount
        if limits.get(resource):  # a limit of 0 means that there is none
            limits[resource] += amount
    requests, limits, scoring, on_node = map(_capped, (requests, limits, scoring, on_node))
    return PodResources(
        requests=requests,
        limits=limits,
        scoring=(scoring.get("cpu", 0), scoring.get("memory", 0)),
        scoring_on_node=(on_node.get("cpu", 0), on_node.get("memory", 0)),
        qos=_qos(spec, status),
    )


def _capped(amounts: ResourceAmounts) -> ResourceAmounts:
    """The API server takes containers of 2**63 - 1 each, and Python adds them up beyond int64, which columns have."""
    return {resource: min(amount, INT64_MAX) for resource, amount in amounts.items()}


def _containers(spec: Json, kind: str, status: Json, *, infeasible: bool = False) -> Iterator[_Container]:
    statuses = _resize_statuses(status)
    for index, container in enumerate(spec.get(kind) or ()):
        resources = container.get("resources") or {}
        field = f"spec.{kind}[{index}].resources"
        limits = decode_resource_list(resources.get("limits"), f"{field}.limits")
        # The API server copies limits to missing requests; manifests in files lack that defaulting.
        requests = {**limits, **decode_resource_list(resources.get("requests"), f"{field}.requests")}
        reported = statuses.get(str(container.get("name")), _NOT_REPORTED)
        allocated = ({} if infeasible else requests) if reported.allocated is None else reported.allocated
        yield _Container(
            requests,
            limits,
            sidecar=container.get("restartPolicy") == "Always",
            allocated=allocated,
            actual_requests=allocated if reported.requests is None else reported.requests,
            actual_limits=({} if infeasible else limits) if reported.limits is None else reported.limits,
        )


def _resize_statuses(status: Json) -> dict[str, _ResizeStatus]:
    """By container name."""
    return {
        str(container.get("name")): _resize_status(container, f"status.{kind}[{index}]")
        for kind in ("initContainerStatuses", "containerStatuses")
        for index, container in enumerate(status.get(kind) or ())
    }


def _resize_status(reported: Json, path: str) -> _ResizeStatus:
    """Of a container, or of the pod itself. Before 1.33 a kubelet may report only `allocatedResources`; kube-scheduler
    1.36 reads them only beside `resources`, 1.37 always."""
    actual = reported.get("resources") or {}

    def amounts(requests: Json | None, field: str) -> ResourceAmounts | None:
        return None if requests is None else decode_resource_list(requests, f"{path}.{field}")

    return _ResizeStatus(
        amounts(actual.get("requests"), "resources.requests"),
        amounts(actual.get("limits"), "resources.limits"),
        amounts(reported.get("allocatedResources"), "allocatedResources"),
        reported.get("resources") is not None,
    )


def _counted_requests(
    containers: Sequence[_Container],
    inits: Sequence[_Container],
    of_pod: _ResizeStatus,
    assumed: ResourceAmounts,
    *,
    infeasible: bool,
) -> ResourceAmounts:
    """The largest sum by resource. `assumed`: what counts for a container that does not name the resource. What the
    kubelet reports about the whole pod replaces the sums of what it reports about the containers."""
    sums = [] if infeasible else [_sum(containers, inits, "requests", assumed)]
    if of_pod.allocated is not None and of_pod.requests is not None:
        return _largest(*sums, of_pod.allocated, of_pod.requests)
    sums += [_sum(containers, inits, field, assumed) for field in ("allocated", "actual_requests")]
    return _largest(*sums)


def _counted_limits(
    containers: Sequence[_Container], inits: Sequence[_Container], of_pod: _ResizeStatus, *, infeasible: bool
) -> ResourceAmounts:
    actual = _sum(containers, inits, "actual_limits", {}) if of_pod.limits is None else of_pod.limits
    return _largest(actual) if infeasible else _largest(_sum(containers, inits, "limits", {}), actual)


def _is_resize_infeasible(status: Json) -> bool:
    """Only the first condition of the type counts, as in kube-scheduler."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodResizePending":
            return bool(condition.get("reason") == "Infeasible")
    return False


def _sum(
    containers: Sequence[_Container], inits: Sequence[_Container], field: str, assumed: ResourceAmounts
) -> ResourceAmounts:
    total: ResourceAmounts = {}
    for container in containers:
        _add_to(total, {**assumed, **getattr(container, field)})
    sidecars: ResourceAmounts = {}
    peak: ResourceAmounts = {}
    for init in inits:
        own_amounts: ResourceAmounts = {**assumed, **getattr(init, field)}
        if init.sidecar:
            _add_to(total, own_amounts)
            _add_to(sidecars, own_amounts)
            own_amounts = {resource: sidecars[resource] for resource in own_amounts}
        else:
            own_amounts = {
                resource: amount + sidecars.get(resource, 0) for resource, amount in own_amounts.items()
            }
        _max_with(peak, own_amounts)  # of other resources it has what the sidecars so far use
    _max_with(total, peak)
    return total


def _pod_level(
    spec: Json, reported: _ResizeStatus, *, infeasible: bool
) -> tuple[ResourceAmounts, ResourceAmounts]:
    """The pod's own requests and limits that replace the containers' sums: those of `spec.resources`, or during a
    resize what counts of them."""
    requests, limits = _pod_level_spec(spec)
    if not reported.has_resources:
        return requests, limits
    wanted_requests, wanted_limits = ({}, {}) if infeasible else (requests, limits)
    counted_requests = _largest(wanted_requests, reported.requests or {}, reported.allocated or {})
    counted_limits = _largest(wanted_limits, reported.limits or {})
    # Without resources of its own, the pod's are the containers' sums.
    return (
        _supported(counted_requests) if requests else {},
        _supported(counted_limits) if requests or limits else {},
    )


def _pod_level_spec(spec: Json) -> tuple[ResourceAmounts, ResourceAmounts]:
    """`spec.resources`, defaulted as the API server does: a request from the containers' sum, else from the limit."""
    resources = spec.get("resources") or {}
    limits = _supported(decode_resource_list(resources.get("limits"), "spec.resources.limits"))
    requests = _supported(decode_resource_list(resources.get("requests"), "spec.resources.requests"))
    if limits:
        containers, inits = (list(_containers(spec, kind, {})) for kind in ("containers", "initContainers"))
        summed = _supported(_sum(containers, inits, "requests", {}))
        requests = {**limits, **summed, **requests}
    return requests, limits


def _supported(amounts: ResourceAmounts) -> ResourceAmounts:
    return {
        name: amount
        for name, amount in amounts.items()
        if name in _POD_LEVEL or name.startswith("hugepages-")
    }


def _qos(spec: Json, status: Json) -> int:
    """The class in the status, or computed as the API server would (only cpu and memory, zeros ignored)."""
    classes = {"BestEffort": 0, "Burstable": 1, "Guaranteed": 2}
    stated = status.get("qosClass")
    if stated in classes:
        return classes[stated]
    pod_requests, pod_limits = _pod_level_spec(spec)
    if pod_requests or pod_limits:
        resources = [(pod_requests, pod_limits)]
    else:
        resources = [
            (container.requests, container.limits)
            for kind in ("containers", "initContainers")
            for container in _containers(spec, kind, {})
        ]
    amounts_lists = [amounts_ for pair in resources for amounts_ in pair]
    if not any(amounts_.get(resource) for amounts_ in amounts_lists for resource in _POD_LEVEL):
        return 0
    guaranteed = all(
        limits.get(resource) and requests.get(resource, limits[resource]) == limits[resource]
        for requests, limits in resources
        for resource in _POD_LEVEL
    )
    return 2 if guaranteed else 1


def _add_to(total: ResourceAmounts, amounts: Mapping[str, int]) -> None:
    for resource, amount in amounts.items():
        total[resource] = total.get(resource, 0) + amount


def _largest(*lists: ResourceAmounts) -> ResourceAmounts:
    result: ResourceAmounts = {}
    for amounts in lists:
        _max_with(result, amounts)
    return result


def _max_with(total: ResourceAmounts, least: Mapping[str, int]) -> None:
    for resource, amount in least.items():
        total[resource] = max(total.get(resource, 0), amount)
