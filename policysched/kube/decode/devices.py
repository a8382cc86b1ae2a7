"""Decodes ResourceClaims, ResourceSlices and DeviceClasses (resource.k8s.io/v1), and encodes allocations."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from fractions import Fraction
from math import ceil
from typing import Any

import orjson

from policysched.cluster.devices.cel_values import quantity_text
from policysched.cluster.devices.extended_resources import may_be_device_resource
from policysched.kube.decode.affinity import decode_node_selector
from policysched.kube.decode.claim_parameters import with_used_devices
from policysched.kube.decode.errors import InvalidField
from policysched.kube.decode.primitives import decode_object, resource_version, text, time_ns
from policysched.model import devices as d
from policysched.model.identifiers import NodeName, PodUid, ResourceClaimKey
from policysched.model.pods import ExtendedResourceRequest, PodResourceClaim
from policysched.model.quantity import parse_quantity
from policysched.model.selectors import NodeSelectorTerm, SelectorRequirement
from policysched.text.short_key import short_key

Json = Mapping[str, Any]

EXTENDED_RESOURCE_CLAIM_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
"""Marks claims that a scheduler created for a pod's extended resources."""


def decode_device_claim_uses(
    spec: Json, status: Json, namespace: str, uid: PodUid
) -> tuple[PodResourceClaim, ...]:
    """The device claims of a pod.

    For a claim from a template, the pod's status names the claim once it is created; an entry without a name means that no
    claim is needed.
    """
    created = {
        text(entry["name"]): entry.get("resourceClaimName")
        for entry in status.get("resourceClaimStatuses") or ()
    }
    claims = []
    for claim in spec.get("resourceClaims") or ():
        if claim.get("resourceClaimName") is not None:
            key = ResourceClaimKey(namespace, text(claim["resourceClaimName"]))
            claims.append(PodResourceClaim(key, None))
        elif claim.get("resourceClaimTemplateName") is None:
            continue  # reported by `has_unknown_claim_kind`
        elif claim["name"] not in created:
            claims.append(PodResourceClaim(None, uid))
        elif created[claim["name"]] is not None:
            claims.append(PodResourceClaim(ResourceClaimKey(namespace, text(created[claim["name"]])), uid))
    return tuple(claims)


def has_unknown_claim_kind(spec: Json) -> bool:
    """Whether a pod has a claim that is given neither by name nor by template."""
    kinds = ("resourceClaimName", "resourceClaimTemplateName")
    return any(all(claim.get(kind) is None for kind in kinds) for claim in spec.get("resourceClaims") or ())


def decode_extended_requests(spec: Json) -> tuple[ExtendedResourceRequest, ...]:
    """The extended resource requests of a pod's containers, in order."""
    inits, requests = len(spec.get("initContainers") or ()), []
    for index, container in enumerate((*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))):
        resources = container.get("resources") or {}
        # The API server copies limits to missing requests; manifests in files lack that defaulting.
        quantities = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for position, name in enumerate(sorted(quantities)):
            if not may_be_device_resource(name):
                continue
            amount = ceil(_amount(quantities[name], f"resources.requests.{name}"))
            if amount > 0:
                passing = index < inits and container.get("restartPolicy") != "Always"
                requests.append(
                    ExtendedResourceRequest(text(container["name"]), index, passing, name, position, amount)
                )
    return tuple(requests)


def decode_resource_claim(obj: Json) -> d.ResourceClaim:
    """A resource.k8s.io/v1 ResourceClaim. Raises MalformedObject."""
    return decode_object("ResourceClaim", obj, lambda read: with_used_devices(read, _claim))


def decode_resource_slice(obj: Json) -> d.ResourceSlice:
    """A resource.k8s.io/v1 ResourceSlice. Raises MalformedObject."""
    return decode_object("ResourceSlice", obj, _slice)


def decode_device_class(obj: Json) -> d.DeviceClass:
    """A resource.k8s.io/v1 DeviceClass. Raises MalformedObject."""
    return decode_object("DeviceClass", obj, _class)


def decode_device_taint_rule(obj: Json) -> d.DeviceTaintRule:
    """A resource.k8s.io/v1 DeviceTaintRule. Raises MalformedObject."""
    return decode_object("DeviceTaintRule", obj, _taint_rule)


DEVICE_DECODERS: Mapping[d.DeviceKind, Callable[[Json], d.DeviceObject]] = {
    "ResourceClaim": decode_resource_claim,
    "ResourceSlice": decode_resource_slice,
    "DeviceClass": decode_device_class,
    "DeviceTaintRule": decode_device_taint_rule,
}


# ── claims ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _claim(obj: Json) -> d.ResourceClaim:
    meta, status = obj["metadata"], obj.get("status") or {}
    devices = (obj.get("spec") or {}).get("devices") or {}
    key = ResourceClaimKey(text(meta.get("namespace") or "default"), text(meta["name"]))
    owners: list[Json] = [
        reference for reference in meta.get("ownerReferences") or () if reference.get("controller")
    ]
    allocation = status.get("allocation")
    return d.ResourceClaim(
        key=key,
        uid=text(meta.get("uid") or str(key)),
        version=resource_version(meta),
        deleting=meta.get("deletionTimestamp") is not None,
        controller_uid=PodUid(text(owners[0]["uid"])) if owners else None,
        spec_text=short_key(_json(devices)),
        requests=tuple(_request(request) for request in devices.get("requests") or ()),
        constraints=tuple(_constraint(constraint) for constraint in devices.get("constraints") or ()),
        configs=tuple(
            d.DeviceClaimConfig(_text_tuple(config.get("requests")), _config(config))
            for config in devices.get("config") or ()
        ),
        allocation=None if allocation is None else decode_allocation(allocation),
        reserved_for=tuple(_consumer(consumer) for consumer in status.get("reservedFor") or ()),
        finalizers=_text_tuple(meta.get("finalizers")),
        for_extended_resources=(meta.get("annotations") or {}).get(EXTENDED_RESOURCE_CLAIM_ANNOTATION)
        == "true",
        device_statuses=tuple(_device_status(entry) for entry in status.get("devices") or ()),
    )


def _device_status(obj: Json) -> d.DeviceStatus:
    return d.DeviceStatus(
        d.DeviceId(text(obj["driver"]), text(obj["pool"]), text(obj["device"])),
        tuple(
            d.DeviceCondition(
                text(condition["type"]),
                text(condition["status"]),
                text(condition.get("reason") or ""),
                text(condition.get("message") or ""),
            )
            for condition in obj.get("conditions") or ()
        ),
    )


def _request(obj: Json) -> d.DeviceRequest:
    exactly = obj.get("exactly")
    return d.DeviceRequest(
        name=text(obj["name"]),
        exactly=None if exactly is None else _device_subrequest(text(obj["name"]), exactly),
        first_available=tuple(
            _device_subrequest(text(sub["name"]), sub) for sub in obj.get("firstAvailable") or ()
        ),
    )


def _device_subrequest(name: str, obj: Json) -> d.ExactDeviceRequest:
    tolerations = obj.get("tolerations") or []
    return d.ExactDeviceRequest(
        name=name,
        class_name=text(obj.get("deviceClassName") or ""),
        selectors=_selectors(obj),
        # Defaults of the API server, for manifests in files.
        mode=text(obj.get("allocationMode") or "ExactCount"),
        count=int(obj.get("count") or 1),
        admin_access=obj.get("adminAccess") is True,
        tolerations=tuple(
            d.DeviceToleration(
                text(toleration.get("key") or ""),
                text(toleration.get("operator") or "Equal"),
                text(toleration.get("value") or ""),
                text(toleration.get("effect") or ""),
            )
            for toleration in tolerations
        ),
        tolerations_json=_json(tolerations),
        capacity=_amounts((obj.get("capacity") or {}).get("requests"), "capacity.requests"),
        derives_attributes=bool(obj.get("derivedAttributes")),
    )


def _selectors(obj: Json) -> tuple[str | None, ...]:
    """None for a selector of an unknown kind."""
    return tuple(
        text(selector["cel"]["expression"]) if selector.get("cel") is not None else None
        for selector in obj.get("selectors") or ()
    )


def _constraint(obj: Json) -> d.DeviceConstraint:
    requests = frozenset(_text_tuple(obj.get("requests")))
    if obj.get("matchAttribute") is not None:
        return d.DeviceConstraint("match", requests, text(obj["matchAttribute"]))
    if obj.get("distinctAttribute") is not None:
        return d.DeviceConstraint("distinct", requests, text(obj["distinctAttribute"]))
    return d.DeviceConstraint("other", requests, "")


def _config(obj: Json) -> str:
    """The part that is copied to the allocation: `opaque`, or kinds of later versions."""
    return _json({key: value for key, value in obj.items() if key not in ("requests", "source")})


def _consumer(obj: Json) -> d.ClaimConsumer:
    return d.ClaimConsumer(
        text(obj.get("apiGroup") or ""), text(obj["resource"]), text(obj["name"]), text(obj["uid"])
    )


def decode_allocation(obj: Json) -> d.DeviceAllocation:
    """`status.allocation` of a claim."""
    devices = obj.get("devices") or {}
    return d.DeviceAllocation(
        devices=tuple(_allocated_device(device) for device in devices.get("results") or ()),
        configs=tuple(
            d.DeviceAllocationConfig(
                "FromClass" if config.get("source") == "FromClass" else "FromClaim",
                _text_tuple(config.get("requests")),
                _config(config),
            )
            for config in devices.get("config") or ()
        ),
        node_selector_terms=decode_node_selector(obj.get("nodeSelector")),
        allocated_ns=time_ns(obj["allocationTimestamp"]) if obj.get("allocationTimestamp") else None,
    )


def _allocated_device(obj: Json) -> d.AllocatedDevice:
    consumed = _amounts(obj.get("consumedCapacity"), "consumedCapacity")
    return d.AllocatedDevice(
        request=text(obj["request"]),
        device=d.DeviceId(text(obj["driver"]), text(obj["pool"]), text(obj["device"])),
        admin_access=obj.get("adminAccess") is True,
        share_id=text(obj.get("shareID") or ""),
        consumed_capacity=tuple(sorted(consumed.items())),
        tolerations=_json(obj.get("tolerations") or []),
        binding_conditions=_text_tuple(obj.get("bindingConditions")),
        binding_failure_conditions=_text_tuple(obj.get("bindingFailureConditions")),
    )


# ── slices and classes ─────────────────────────────────────────────────────────────────────────────────────────────


def _slice(obj: Json) -> d.ResourceSlice:
    meta, spec = obj["metadata"], obj["spec"]
    pool = spec["pool"]
    return d.ResourceSlice(
        name=text(meta["name"]),
        version=resource_version(meta),
        pool=d.PoolId(text(spec["driver"]), text(pool["name"])),
        generation=int(pool.get("generation") or 0),
        slice_count=int(pool.get("resourceSliceCount") or 0),
        accessible_nodes=_reach(spec),
        per_device_node_selection=spec.get("perDeviceNodeSelection") is True,
        devices=tuple(_device(device) for device in spec.get("devices") or ()),
        counters={
            text(counter_set["name"]): _values(counter_set.get("counters"), "sharedCounters")
            for counter_set in spec.get("sharedCounters") or ()
        },
        is_supported=not spec.get("skipNodeOperations")
        and not any(
            consumption.get("compatibilityGroups")
            for device in spec.get("devices") or ()
            for consumption in device.get("consumesCounters") or ()
        ),
    )


def _reach(spec: Json) -> d.AccessibleNodes:
    node = spec.get("nodeName")
    return d.AccessibleNodes(
        node=NodeName(text(node)) if node else None,
        all_nodes=spec.get("allNodes") is True,
        terms=decode_node_selector(spec.get("nodeSelector")),
    )


def _device(obj: Json) -> d.Device:
    return d.Device(
        name=text(obj["name"]),
        attributes={text(name): _attribute(value) for name, value in (obj.get("attributes") or {}).items()},
        capacity={text(name): _capacity(value) for name, value in (obj.get("capacity") or {}).items()},
        consumes_counters=tuple(
            d.CounterConsumption(text(use["counterSet"]), _values(use.get("counters"), "consumesCounters"))
            for use in obj.get("consumesCounters") or ()
        ),
        accessible_nodes=_reach(obj),
        taints=tuple(_taint(taint) for taint in obj.get("taints") or ()),
        binds_to_node=obj.get("bindsToNode") is True,
        binding_conditions=_text_tuple(obj.get("bindingConditions")),
        binding_failure_conditions=_text_tuple(obj.get("bindingFailureConditions")),
        shareable=obj.get("allowMultipleAllocations") is True,
        maps_node_resources=bool(
            obj.get("nodeAllocatableResources") or obj.get("nodeAllocatableResourceMappings")  # until 1.36
        ),
    )


def _attribute(obj: Json) -> d.DeviceAttribute:
    if isinstance(obj.get("string"), str):
        return d.DeviceAttribute("string", obj["string"])
    if isinstance(obj.get("bool"), bool):
        return d.DeviceAttribute("bool", obj["bool"])
    if isinstance(obj.get("int"), int):
        return d.DeviceAttribute("int", obj["int"])
    if isinstance(obj.get("version"), str):
        return d.DeviceAttribute("version", obj["version"])
    return d.DeviceAttribute("other", "")


def _capacity(obj: Json) -> d.DeviceCapacity:
    policy = obj.get("requestPolicy")
    return d.DeviceCapacity(_amount(obj["value"], "capacity"), None if policy is None else _policy(policy))


def _policy(obj: Json) -> d.CapacityRequestPolicy:
    limits = obj.get("validRange")
    least, most, step = ((limits or {}).get(name) for name in ("min", "max", "step"))
    return d.CapacityRequestPolicy(
        default=_optional_amount(obj.get("default")),
        valid_values=tuple(_amount(value, "validValues") for value in obj.get("validValues") or ()),
        has_range=limits is not None,
        range_min=_optional_amount(least),
        range_max=_optional_amount(most),
        range_step=_optional_amount(step),
    )


def _class(obj: Json) -> d.DeviceClass:
    spec = obj.get("spec") or {}
    return d.DeviceClass(
        name=text(obj["metadata"]["name"]),
        selectors=_selectors(spec),
        configs=tuple(_config(config) for config in spec.get("config") or ()),
        extended_resource_name=text(spec.get("extendedResourceName") or ""),
        created_ns=time_ns(obj["metadata"].get("creationTimestamp")),
    )


# ── helpers ──────────────────────────────────────────────────────────────────────────────────────────────────


def _amounts(amounts: Json | None, field: str) -> dict[str, Fraction]:
    return {text(name): _amount(value, field) for name, value in (amounts or {}).items()}


def _values(values: Json | None, field: str) -> dict[str, Fraction]:
    return {text(name): _amount(entry["value"], field) for name, entry in (values or {}).items()}


def _optional_amount(value: Any) -> Fraction | None:
    return None if value is None else _amount(value, "requestPolicy")


def _amount(value: Any, field: str) -> Fraction:
    try:
        return parse_quantity(value if isinstance(value, str) else str(value))
    except ValueError as error:
        raise InvalidField(field, str(error)) from error


def _text_tuple(items: Iterable[Any] | None) -> tuple[str, ...]:
    return tuple(text(item) for item in items or ())


def _json(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


# ── encoding ──────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_allocation(allocation: d.DeviceAllocation, at_ns: int) -> dict[str, Any]:
    """`status.allocation` of a claim that is allocated now."""
    devices: dict[str, Any] = {"results": [_allocated_json(device) for device in allocation.devices]}
    if allocation.configs:
        devices["config"] = [
            {"source": config.source, "requests": list(config.requests), **orjson.loads(config.config)}
            for config in allocation.configs
        ]
    at = datetime.fromtimestamp(at_ns // 10**9, UTC).isoformat().replace("+00:00", "Z")
    encoded: dict[str, Any] = {"devices": devices, "allocationTimestamp": at}
    if allocation.node_selector_terms is not None:
        encoded["nodeSelector"] = {
            "nodeSelectorTerms": [_term_json(term) for term in allocation.node_selector_terms]
        }
    return encoded


def _allocated_json(allocated: d.AllocatedDevice) -> dict[str, Any]:
    driver, pool, device = allocated.device
    encoded: dict[str, Any] = {"request": allocated.request, "driver": driver, "pool": pool, "device": device}
    if allocated.admin_access:
        encoded["adminAccess"] = True
    tolerations = orjson.loads(allocated.tolerations)
    if tolerations:
        encoded["tolerations"] = tolerations
    if allocated.share_id:
        encoded["shareID"] = allocated.share_id
    if allocated.consumed_capacity:
        encoded["consumedCapacity"] = {
            name: quantity_text(amount) for name, amount in allocated.consumed_capacity
        }
    if allocated.binding_conditions:
        encoded["bindingConditions"] = list(allocated.binding_conditions)
    if allocated.binding_failure_conditions:
        encoded["bindingFailureConditions"] = list(allocated.binding_failure_conditions)
    return encoded


def _term_json(term: NodeSelectorTerm) -> dict[str, Any]:
    encoded = {}
    for name, requirements in (("matchExpressions", term.expressions), ("matchFields", term.fields)):
        if requirements:
            encoded[name] = [_requirement_json(requirement) for requirement in requirements]
    return encoded


def _requirement_json(requirement: SelectorRequirement) -> dict[str, Any]:
    values = {"values": list(requirement.values)} if requirement.values else {}
    return {"key": requirement.key, "operator": requirement.operator, **values}


def _taint(obj: Json) -> d.DeviceTaint:
    return d.DeviceTaint(text(obj["key"]), text(obj.get("value") or ""), text(obj.get("effect") or ""))


def _taint_rule(obj: Json) -> d.DeviceTaintRule:
    spec = obj["spec"]
    selector = spec.get("deviceSelector")
    driver, pool, device = (
        None if (value := (selector or {}).get(field)) is None else text(value)
        for field in ("driver", "pool", "device")
    )
    return d.DeviceTaintRule(
        text(obj["metadata"]["name"]), _taint(spec["taint"]), selector is not None, driver, pool, device
    )
