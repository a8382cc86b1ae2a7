"""Computes a pod's resource requests and limits as kube-scheduler does.

Containers add up; a sidecar (an init container that restarts) runs beside all containers after it; any other init
container runs alone with the sidecars before it. The larger of the two phases counts, and overhead is added. Pod-level
resources replace the sum. Source: `k8s.io/component-helpers/resource` (`PodRequests`, `PodLimits`), and
for the requests assumed in scoring `pkg/scheduler/util/pod_resources.go`.
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
    running = _allocated_resources(status)
    try:
        key = orjson.dumps(
            (
                [_container_cache_key(container, running) for container in spec.get("containers") or ()],
                [_container_cache_key(container, running) for container in spec.get("initContainers") or ()],
                spec.get("overhead"),
                spec.get("resources"),
                status.get("qosClass"),
            )
        )
    except orjson.JSONEncodeError:  # a file may have numbers beyond the range of orjson
        return _compute_pod_resources(spec, status, running)
    resources = _cache.get(key)
    if resources is None:
        resources = _compute_pod_resources(spec, status, running)
        if len(_cache) >= _CACHE_MAX:
            _cache.clear()
        _cache[key] = resources
    return resources


_CACHE_MAX = 4096
_cache: dict[bytes, PodResources] = {}


def _container_cache_key(container: Json, running: Mapping[str, ResourceAmounts]) -> tuple[Any, ...]:
    allocated = running.get(str(container.get("name"))) if running else None
    return container.get("resources"), container.get("restartPolicy"), allocated


def _compute_pod_resources(spec: Json, status: Json, running: Mapping[str, ResourceAmounts]) -> PodResources:
    containers = list(_containers(spec, "containers", running))
    inits = list(_containers(spec, "initContainers", running))
    overhead = decode_resource_list(spec.get("overhead"), "spec.overhead")
    pod_requests, pod_limits = _pod_level(spec, containers, inits)

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
        if resource in limits:
            limits[resource] += amount
    return PodResources(
        requests=requests,
        limits=limits,
        scoring=(scoring.get("cpu", 0), scoring.get("memory", 0)),
        scoring_on_node=(on_node.get("cpu", 0), on_node.get("memory", 0)),
        qos=_qos(status, containers + inits, pod_requests, pod_limits),
    )


def _containers(spec: Json, kind: str, running: Mapping[str, ResourceAmounts]) -> Iterator[_Container]:
    for index, container in enumerate(spec.get(kind) or ()):
        resources = container.get("resources") or {}
        field = f"spec.{kind}[{index}].resources"
        limits = decode_resource_list(resources.get("limits"), f"{field}.limits")
        # The API server copies limits to missing requests; manifests in files lack that defaulting.
        requests = {**limits, **decode_resource_list(resources.get("requests"), f"{field}.requests")}
        for resource, amount in running.get(str(container.get("name")), {}).items():
            requests[resource] = max(requests.get(resource, 0), amount)
        yield _Container(requests, limits, sidecar=container.get("restartPolicy") == "Always")


def _allocated_resources(status: Json) -> dict[str, ResourceAmounts]:
    """Resources of running containers: during an in-place resize the larger of old and new counts."""
    allocated: dict[str, ResourceAmounts] = {}
    for kind in ("containerStatuses", "initContainerStatuses"):
        for index, container_status in enumerate(status.get(kind) or ()):
            field, actual = "resources.requests", (container_status.get("resources") or {}).get("requests")
            if not actual:
                field, actual = "allocatedResources", container_status.get("allocatedResources")
            if actual:
                allocated[str(container_status.get("name"))] = decode_resource_list(
                    actual, f"status.{kind}[{index}].{field}"
                )
    return allocated


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


def _pod_level(
    spec: Json, containers: list[_Container], inits: list[_Container]
) -> tuple[ResourceAmounts, ResourceAmounts]:
    """`spec.resources`, defaulted as the API server does: a request from the containers' sum, else from the limit."""
    resources = spec.get("resources") or {}
    limits = _supported(decode_resource_list(resources.get("limits"), "spec.resources.limits"))
    requests = _supported(decode_resource_list(resources.get("requests"), "spec.resources.requests"))
    if limits:
        summed = _supported(_effective(containers, inits, "requests"))
        requests = {**limits, **summed, **requests}
    return requests, limits


def _supported(amounts: ResourceAmounts) -> ResourceAmounts:
    return {
        name: amount
        for name, amount in amounts.items()
        if name in _POD_LEVEL or name.startswith("hugepages-")
    }


def _qos(
    status: Json, containers: list[_Container], pod_requests: ResourceAmounts, pod_limits: ResourceAmounts
) -> int:
    """The class in the status, or computed as the API server would (only cpu and memory, zeros ignored)."""
    classes = {"BestEffort": 0, "Burstable": 1, "Guaranteed": 2}
    stated = status.get("qosClass")
    if stated in classes:
        return classes[stated]
    if pod_requests or pod_limits:
        resources = [(pod_requests, pod_limits)]
    else:
        resources = [(container.requests, container.limits) for container in containers]
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


def _max_with(total: ResourceAmounts, least: Mapping[str, int]) -> None:
    for resource, amount in least.items():
        total[resource] = max(total.get(resource, 0), amount)
