"""Extended resources that devices provide: a DeviceClass may name one (`extendedResourceName`), and
each has an implicit one.

A pod requests them in its containers' `resources`, as for a device plugin. If the node does not
offer the resource itself, the scheduler creates a claim for the pod: one request per container that
keeps running, and one for all init containers that run to completion, which first use the devices
of later containers. Source: `createRequestsAndMappings` in kubernetes'
`pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from policysched.model.devices import DeviceClass, DeviceRequest, ExactDeviceRequest
from policysched.model.pods import ExtendedResourceRequest

CLASS_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Prefix of the implicit resource of a class, followed by the class name."""


@dataclass(frozen=True, slots=True)
class ExtendedResourceMapping:
    """Which request of the claim provides a container's resource. Written to the pod's status for
    the kubelet."""

    container: str
    resource: str
    request: str


def may_be_device_resource(resource: str) -> bool:
    """Whether the name is an extended resource: with a domain, and not a native Kubernetes
    resource."""
    if resource.startswith(CLASS_RESOURCE_PREFIX):
        return True
    return "/" in resource and "kubernetes.io/" not in resource and not resource.startswith("requests.")


def classes_by_resource(classes: Iterable[DeviceClass]) -> dict[str, DeviceClass]:
    """If several classes name a resource, the newest wins, then the first by name."""
    by_resource: dict[str, DeviceClass] = {}
    for device_class in sorted(classes, key=lambda item: (-item.created_ns, item.name)):
        if device_class.extended_resource_name:
            by_resource.setdefault(device_class.extended_resource_name, device_class)
        by_resource[f"{CLASS_RESOURCE_PREFIX}{device_class.name}"] = device_class
    return by_resource


def requests_and_mappings(
    resource_requests: Sequence[ExtendedResourceRequest], classes: Mapping[str, str]
) -> tuple[tuple[DeviceRequest, ...], tuple[ExtendedResourceMapping, ...]]:
    """The requests of the claim in their order, and which container uses which. `classes`: class
    names by resource."""
    counts: dict[str, tuple[str, int]] = {}
    mapped: list[ExtendedResourceMapping] = []
    for resource in sorted(classes):
        lasting = [
            request
            for request in resource_requests
            if request.resource == resource and not request.runs_to_completion
        ]
        mapped += [
            ExtendedResourceMapping(request.container, resource, _request_name(request))
            for request in lasting
        ]
        passing = [
            request
            for request in resource_requests
            if request.resource == resource and request.runs_to_completion
        ]
        more, used = _init_container_requests(passing, lasting)
        mapped += used
        for name, count in (*((_request_name(request), request.amount) for request in lasting), *more):
            counts[name] = classes[resource], count
    requests = tuple(_device_request(name, *counts[name]) for name in sorted(counts))
    return requests, tuple(mapped)


def _init_container_requests(
    passing: Sequence[ExtendedResourceRequest], lasting: Sequence[ExtendedResourceRequest]
) -> tuple[list[tuple[str, int]], list[ExtendedResourceMapping]]:
    """Init containers run one after the other, so the largest of their requests serves all."""
    used: list[ExtendedResourceMapping] = []
    own_requests: dict[str, int] = {}
    for request in passing:
        missing = request.amount
        for later in lasting:
            if later.container_index < request.container_index or missing <= 0:
                continue
            used.append(ExtendedResourceMapping(request.container, request.resource, _request_name(later)))
            missing -= later.amount
        if missing > 0:
            own_requests[_request_name(request)] = missing
            used.append(ExtendedResourceMapping(request.container, request.resource, _request_name(request)))
    if not own_requests:
        return [], used
    greatest = max(own_requests, key=lambda name: own_requests[name])
    shared = [
        replace(mapping, request=greatest) if mapping.request in own_requests else mapping for mapping in used
    ]
    return [(greatest, own_requests[greatest])], shared


def _request_name(request: ExtendedResourceRequest) -> str:
    return f"container-{request.container_index}-request-{request.resource_index}"


def _device_request(name: str, class_name: str, count: int) -> DeviceRequest:
    ask = ExactDeviceRequest(
        name=name,
        class_name=class_name,
        selectors=(),
        mode="ExactCount",
        count=count,
        admin_access=False,
        tolerations=(),
        tolerations_json="[]",
        capacity={},
    )
    return DeviceRequest(name, ask, ())
