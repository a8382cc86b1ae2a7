"""Computes a pod's resource requests and limits as kube-scheduler does.

Containers add up; a sidecar (an init container that restarts) runs beside all containers after it; any other init
container runs alone with the sidecars before it. The larger of the two phases counts, and overhead is added. Pod-level
resources replace the sum. Source: `k8s.io/component-helpers/resource` (`PodRequests`, `PodLimits`), and
for the requests assumed in scoring `pkg/scheduler/util/pod_resources.go`.

A pod may be resized in place. Until its kubelet has done so, the largest of three amounts counts: what the spec
wants, what the kubelet has allocated and what the containers have. A resize that the kubelet calls infeasible
never happens on this node, so the spec does not count. The same holds for pod-level resources. These are the rules of
kube-scheduler 1.36 (`determineEffectiveRequests`). 1.37 takes the largest after it has added the containers up, which is
never more; the sum of the largest keeps room for containers that are resized one after the other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from policysched.kube.decode.errors import InvalidField
from policysched.model.quantity import parse_milli_units, parse_whole_units

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
    """What the kubelet reports about one container, or the pod: `actual` resources and `allocated` requests.
    `infeasible`: the kubelet will not do the pending resize."""

    actual_requests: ResourceAmounts
    actual_limits: ResourceAmounts | None
    allocated: ResourceAmounts
    infeasible: bool

    def counted_requests(self, wanted: ResourceAmounts) -> ResourceAmounts:
        return _largest(({} if self.infeasible else wanted), self.actual_requests, self.allocated)

    def counted_limits(self, wanted: ResourceAmounts) -> ResourceAmounts:
        if self.actual_limits is None:
            return wanted
        return _largest(({} if self.infeasible else wanted), self.actual_limits)


_Statuses = Mapping[str, _ResizeStatus]
_POD = ""  # the key of the pod's own status in _Statuses: a container has a name


@dataclass(frozen=True, slots=True)
class _Container:
    requests: ResourceAmounts
    limits: ResourceAmounts
    sidecar: bool


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

    Cached by all inputs, since replicas have equal ones: the result is computed and stored once for all of them.
    """
    try:
        key = orjson.dumps(
            (
                [_resize_key(container) for container in status.get("containerStatuses") or ()],
                [_resize_key(container) for container in status.get("initContainerStatuses") or ()],
                status.get("resources"),
                status.get("allocatedResources"),
                _is_resize_infeasible(status),
                [_container_key(container) for container in spec.get("containers") or ()],
                [_container_key(container) for container in spec.get("initContainers") or ()],
                spec.get("overhead"),
                spec.get("resources"),
                status.get("qosClass"),
            )
        )
    except orjson.JSONEncodeError:  # a file may have numbers beyond the range of orjson
        return _compute_pod_resources(spec, status)
    resources = _cache.get(key)
    if resources is None:
        resources = _compute_pod_resources(spec, status)
        if len(_cache) >= _CACHE_MAX:
            _cache.clear()
        _cache[key] = resources
    return resources


_CACHE_MAX = 4096
_cache: dict[bytes, PodResources] = {}


def _container_key(container: Json) -> tuple[Any, ...]:
    return container.get("name"), container.get("resources"), container.get("restartPolicy")


def _resize_key(container_status: Json) -> tuple[Any, ...]:
    return (
        container_status.get("name"),
        container_status.get("resources"),
        container_status.get("allocatedResources"),
    )


def _compute_pod_resources(spec: Json, status: Json) -> PodResources:
    statuses = _resize_statuses(status)
    containers = list(_containers(spec, "containers", statuses))
    inits = list(_containers(spec, "initContainers", statuses))
    overhead = decode_resource_list(spec.get("overhead"), "spec.overhead")
    pod_requests, pod_limits = _pod_level(spec, statuses)

    requests = {**_effective(containers, inits, "requests"), **pod_requests}
    limits = {**_effective(containers, inits, "limits"), **pod_limits}
    # Pod-level requests are ignored while the pod is scored and counted on its node, as in kube-scheduler 1.36:
    # the scorer of NodeResourcesFit is created without the feature, the node's totals with it.
    scoring = _scoring(containers, inits, None)
    on_node = {**_scoring(containers, inits, requests if pod_requests else None), **pod_requests}
    for resource, amount in overhead.items():
        requests[resource] = requests.get(resource, 0) + amount
        scoring[resource] = scoring.get(resource, 0) + amount
        on_node[resource] = on_node.get(resource, 0) + amount
        if limits.get(resource):  # a limit of 0 means that there is none
            limits[resource] += amount
    return PodResources(
        requests=requests,
        limits=limits,
        scoring=(scoring.get("cpu", 0), scoring.get("memory", 0)),
        scoring_on_node=(on_node.get("cpu", 0), on_node.get("memory", 0)),
        qos=_qos(spec, status),
    )


def _containers(spec: Json, kind: str, statuses: _Statuses) -> Iterator[_Container]:
    for index, container in enumerate(spec.get(kind) or ()):
        resources = container.get("resources") or {}
        field = f"spec.{kind}[{index}].resources"
        limits = decode_resource_list(resources.get("limits"), f"{field}.limits")
        # The API server copies limits to missing requests; manifests in files lack that defaulting.
        requests = {**limits, **decode_resource_list(resources.get("requests"), f"{field}.requests")}
        sidecar = container.get("restartPolicy") == "Always"
        reported = statuses.get(str(container.get("name")))
        if reported is not None and (
            sidecar or kind == "containers"
        ):  # others cannot be resized while they run
            requests, limits = reported.counted_requests(requests), reported.counted_limits(limits)
        yield _Container(requests, limits, sidecar)


def _resize_statuses(status: Json) -> dict[str, _ResizeStatus]:
    """By container name, and of the pod itself. Before 1.33 a kubelet may report only `allocatedResources`;
    kube-scheduler 1.36 reads them only beside `resources`, 1.37 always."""
    infeasible = _is_resize_infeasible(status)
    places: list[tuple[str, str, Json]] = [
        (str(container.get("name")), f"status.{kind}[{index}]", container)
        for kind in ("containerStatuses", "initContainerStatuses")
        for index, container in enumerate(status.get(kind) or ())
    ]
    places.append((_POD, "status", status))
    statuses = {}
    for name, place, reported in places:
        actual, allocated = reported.get("resources"), reported.get("allocatedResources")
        if actual is None and allocated is None:
            continue
        statuses[name] = _ResizeStatus(
            decode_resource_list((actual or {}).get("requests"), f"{place}.resources.requests"),
            None
            if actual is None
            else decode_resource_list(actual.get("limits"), f"{place}.resources.limits"),
            decode_resource_list(allocated, f"{place}.allocatedResources"),
            infeasible,
        )
    return statuses


def _is_resize_infeasible(status: Json) -> bool:
    """Only the first condition of the type counts, as in kube-scheduler."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodResizePending":
            return bool(condition.get("reason") == "Infeasible")
    return False


def _effective(containers: list[_Container], inits: list[_Container], what: str) -> ResourceAmounts:
    total: ResourceAmounts = {}
    for container in containers:
        _add_to(total, getattr(container, what))
    sidecars: ResourceAmounts = {}
    peak: ResourceAmounts = {}
    for init in inits:
        own: ResourceAmounts = dict(getattr(init, what))
        if init.sidecar:
            _add_to(total, own)
            _add_to(sidecars, own)
            own = dict(sidecars)
        else:
            _add_to(own, sidecars)
        _max_with(peak, own)
    _max_with(total, peak)
    return total


def _scoring(
    containers: list[_Container], inits: list[_Container], pod_level: ResourceAmounts | None
) -> ResourceAmounts:
    assumed = {"cpu": DEFAULT_SCORING_CPU_MILLI, "memory": DEFAULT_SCORING_MEMORY_BYTES}
    if pod_level is not None:
        assumed = {resource: amount for resource, amount in assumed.items() if resource not in pod_level}

    def filled(container: _Container) -> _Container:
        return _Container({**assumed, **container.requests}, container.limits, container.sidecar)

    return _effective(
        [filled(container) for container in containers],
        [filled(container) for container in inits],
        "requests",
    )


def _pod_level(spec: Json, statuses: _Statuses) -> tuple[ResourceAmounts, ResourceAmounts]:
    """The pod's own requests and limits that replace the containers' sums: those of `spec.resources`, or during a
    resize what counts of them."""
    requests, limits = _pod_level_spec(spec)
    reported = statuses.get(_POD)
    if reported is None:
        return requests, limits
    counted_requests, counted_limits = reported.counted_requests(requests), reported.counted_limits(limits)
    # A resource that the spec does not name is the containers' sum, whatever the status says.
    return (
        {resource: counted_requests.get(resource, 0) for resource in requests},
        {resource: counted_limits.get(resource, 0) for resource in limits},
    )


def _pod_level_spec(spec: Json) -> tuple[ResourceAmounts, ResourceAmounts]:
    """`spec.resources`, defaulted as the API server does: a request from the containers' sum, else from the limit."""
    resources = spec.get("resources") or {}
    limits = _supported(decode_resource_list(resources.get("limits"), "spec.resources.limits"))
    requests = _supported(decode_resource_list(resources.get("requests"), "spec.resources.requests"))
    if limits:
        containers, inits = (list(_containers(spec, kind, {})) for kind in ("containers", "initContainers"))
        summed = _supported(_effective(containers, inits, "requests"))
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


def _add_to(total: ResourceAmounts, more: Mapping[str, int]) -> None:
    for resource, amount in more.items():
        total[resource] = total.get(resource, 0) + amount


def _largest(*lists: ResourceAmounts) -> ResourceAmounts:
    result: ResourceAmounts = {}
    for amounts in lists:
        _max_with(result, amounts)
    return result


def _max_with(total: ResourceAmounts, least: Mapping[str, int]) -> None:
    for resource, amount in least.items():
        total[resource] = max(total.get(resource, 0), amount)
