"""Extended resources that devices stand for: a DeviceClass names one (`extendedResourceName`), and each has one of its own.

A pod asks for them in its containers' `resources`, as of a device plugin. Where the node does not offer the resource
itself, its devices are asked for in a claim that the scheduler makes for the pod: a request for what each container needs
that runs on, and one for all init containers that end before, which first use what later containers will have.
Source: `createRequestsAndMappings` in kubernetes' `pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from policysched.model.devices import Ask, DeviceClass, DeviceRequest
from policysched.model.objects import ExtendedRequest

OF_A_CLASS = "deviceclass.resource.kubernetes.io/"
"""Before a class's name: the resource of its own."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """Which request of the claim gives a container its resource: the pod's status says so to the kubelet."""

    container: str
    resource: str
    request: str


def may_be_devices(resource: str) -> bool:
    """Names that are not Kubernetes' own have a slash."""
    if resource.startswith(OF_A_CLASS):
        return True
    return "/" in resource and "kubernetes.io/" not in resource and not resource.startswith("requests.")


def classes_by_resource(classes: Iterable[DeviceClass]) -> dict[str, DeviceClass]:
    """Of classes that name the same resource the newest has it, of equally new ones the first by name."""
    found: dict[str, DeviceClass] = {}
    for one in sorted(classes, key=lambda one: (-one.created_ns, one.name)):
        if one.extended_resource:
            found.setdefault(one.extended_resource, one)
        found[f"{OF_A_CLASS}{one.name}"] = one
    return found


def requests_for(
    asked: Sequence[ExtendedRequest], classes: Mapping[str, str]
) -> tuple[tuple[DeviceRequest, ...], tuple[Mapped, ...]]:
    """For the resources of `classes`, each by its class's name: the claim's requests, in their order, and which container
    uses which."""
    counts: dict[str, tuple[str, int]] = {}
    mapped: list[Mapped] = []
    for resource in sorted(classes):
        lasting = [one for one in asked if one.resource == resource and not one.passing]
        mapped += [Mapped(one.container, resource, _name(one)) for one in lasting]
        passing = [one for one in asked if one.resource == resource and one.passing]
        more, used = _of_passing(passing, lasting)
        mapped += used
        for name, count in (*((_name(one), one.amount) for one in lasting), *more):
            counts[name] = classes[resource], count
    requests = tuple(_request(name, *counts[name]) for name in sorted(counts))
    return requests, tuple(mapped)


def _of_passing(
    passing: Sequence[ExtendedRequest], lasting: Sequence[ExtendedRequest]
) -> tuple[list[tuple[str, int]], list[Mapped]]:
    """They run one after the other, so the greatest of their requests is enough for all."""
    used: list[Mapped] = []
    own: dict[str, int] = {}
    for one in passing:
        missing = one.amount
        for later in lasting:
            if later.index < one.index or missing <= 0:
                continue
            used.append(Mapped(one.container, one.resource, _name(later)))
            missing -= later.amount
        if missing > 0:
            own[_name(one)] = missing
            used.append(Mapped(one.container, one.resource, _name(one)))
    if not own:
        return [], used
    greatest = max(own, key=lambda name: own[name])
    shared = [replace(one, request=greatest) if one.request in own else one for one in used]
    return [(greatest, own[greatest])], shared


def _name(one: ExtendedRequest) -> str:
    return f"container-{one.index}-request-{one.place}"


def _request(name: str, class_name: str, count: int) -> DeviceRequest:
    ask = Ask(
        name=name,
        class_name=class_name,
        selectors=(),
        mode="ExactCount",
        count=count,
        admin=False,
        tolerations=(),
        tolerations_json="[]",
        capacity={},
    )
    return DeviceRequest(name, ask, ())
