"""Builders of device objects for tests, like `tests.builders`. Everything is decoded by
`kube.decode.devices`."""

from collections.abc import Iterable, Mapping
from typing import Any

from policysched.kube.decode import devices
from policysched.kube.decode.pods import decode_pod
from policysched.model.devices import DeviceClass, ResourceClaim, ResourceSlice
from policysched.model.pods import Pod

Json = dict[str, Any]
DRIVER = "gpu.example.com"
FINALIZER = "resource.kubernetes.io/delete-protection"


def gpu(name: str, **more: Any) -> Json:
    """A device. `attributes` as plain values, `capacity` as quantities, other fields as in the API."""
    attributes, capacity = more.pop("attributes", {}), more.pop("capacity", {})
    return {
        "name": name,
        **(
            {"attributes": {key: _attribute(value) for key, value in attributes.items()}}
            if attributes
            else {}
        ),
        **({"capacity": {key: _capacity(value) for key, value in capacity.items()}} if capacity else {}),
        **more,
    }


def _attribute(value: object) -> Json:
    match value:
        case bool():
            return {"bool": value}
        case int():
            return {"int": value}
        case dict():
            return value
        case _:
            return {"string": value}


def _capacity(value: object) -> Json:
    return value if isinstance(value, dict) else {"value": value}


def slice_manifest(
    node: str | None,
    *gpus: Json,
    name: str | None = None,
    pool: str | None = None,
    driver: str = DRIVER,
    generation: int = 1,
    slices: int = 1,
    version: int = 1,
    **spec: Any,
) -> Json:
    """With `node` None, `spec` selects the nodes."""
    pool = pool or node or "shared"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"{pool}-{driver}", "resourceVersion": str(version)},
        "spec": {
            "driver": driver,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": slices},
            **({"nodeName": node} if node else {}),
            **({"devices": list(gpus)} if gpus else {}),
            **spec,
        },
    }


def new(manifest: Json) -> Json:
    """The manifest to create, without the version and UID that the server assigns."""
    meta = {
        key: value for key, value in manifest["metadata"].items() if key not in ("resourceVersion", "uid")
    }
    return {**manifest, "metadata": meta}


def device_slice(node: str | None, *gpus: Json, **more: Any) -> ResourceSlice:
    return devices.decode_resource_slice(slice_manifest(node, *gpus, **more))


def class_manifest(name: str = "gpu", *selectors: str, created: str | None = None, **spec: Any) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name, **({"creationTimestamp": created} if created else {})},
        "spec": {"selectors": [{"cel": {"expression": expression}} for expression in selectors], **spec},
    }


def device_class(name: str = "gpu", *selectors: str, **more: Any) -> DeviceClass:
    """A decoded class, with the arguments of `class_manifest`."""
    return devices.decode_device_class(class_manifest(name, *selectors, **more))


def asking(name: str = "r", *selectors: str, of_class: str = "gpu", **exactly: Any) -> Json:
    """A request."""
    return {"name": name, "exactly": ask(*selectors, of_class=of_class, **exactly)}


def ask(*selectors: str, of_class: str = "gpu", **more: Any) -> Json:
    chosen = (
        {"selectors": [{"cel": {"expression": expression}} for expression in selectors]} if selectors else {}
    )
    return {"deviceClassName": of_class, **chosen, **more}


def claim_spec(*requests: Json, **devices_: Any) -> Json:
    return {"devices": {"requests": list(requests) or [asking()], **devices_}}


def claim_manifest(
    name: str = "c",
    *requests: Json,
    namespace: str = "default",
    version: int = 1,
    uid: str | None = None,
    owner: str | None = None,
    extended: bool = False,
    status: Mapping[str, Any] | None = None,
    finalizers: Iterable[str] = (),
    **devices_: Any,
) -> Json:
    owners = (
        [{"uid": owner, "controller": True, "kind": "Pod", "name": "p", "apiVersion": "v1"}] if owner else []
    )
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(version),
            **({"ownerReferences": owners} if owners else {}),
            **({"annotations": {devices.EXTENDED_RESOURCE_CLAIM_ANNOTATION: "true"}} if extended else {}),
            **({"finalizers": list(finalizers)} if finalizers else {}),
        },
        "spec": claim_spec(*requests, **devices_),
        **({"status": dict(status)} if status else {}),
    }


def claim(name: str = "c", *requests: Json, **more: Any) -> ResourceClaim:
    return devices.decode_resource_claim(claim_manifest(name, *requests, **more))


def given(
    *gpus: str,
    node: str | None = "a",
    reserved: Iterable[str] = (),
    request: str = "r",
    at: str | None = None,
    reported: Mapping[str, str] | None = None,
    **result: Any,
) -> Json:
    """The status of a claim: allocated with these devices of the node's pool, and reserved for
    these pods. `at` is the allocation timestamp, `reported` the conditions of each device."""
    results = [
        {"request": request, "driver": DRIVER, "pool": node or "shared", "device": name, **result}
        for name in gpus
    ]
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    selector = {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]}} if node else {}
    conditions = [
        {"type": name, "status": value, "reason": "Said", "message": "so"}
        for name, value in (reported or {}).items()
    ]
    devices_ = [
        {"driver": DRIVER, "pool": node or "shared", "device": device, "conditions": conditions}
        for device in gpus
    ]
    return {
        **({"devices": devices_} if conditions else {}),
        "allocation": {
            "devices": {"results": results},
            **selector,
            **({"allocationTimestamp": at} if at else {}),
        },
        "reservedFor": [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in reserved],
    }


def claiming(*claims: str) -> Json:
    """The `resourceClaims` of a pod's spec."""
    return {"resourceClaims": [{"name": name, "resourceClaimName": name} for name in claims]}


def user(name: str, *claims: str, made: Mapping[str, str | None] | None = None, **spec: Any) -> Pod:
    """A pod with these claims. `made`: claims from templates by reference, with their names (None:
    none is created)."""
    templates = [{"name": name, "resourceClaimTemplateName": name} for name in (made or {})]
    statuses = [
        {"name": name, **({"resourceClaimName": claim_name} if claim_name else {})}
        for name, claim_name in (made or {}).items()
    ]
    return decode_pod(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {
                "schedulerName": "test",
                "containers": [{"name": "c", "image": "app:1"}],
                "resourceClaims": [*claiming(*claims)["resourceClaims"], *templates],
                **spec,
            },
            "status": {"resourceClaimStatuses": statuses} if statuses else {},
        }
    ).pod
