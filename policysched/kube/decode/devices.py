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
from policysched.kube.decode.errors import InvalidField
from policysched.kube.decode.primitives import decode_object, resource_version, text, time_ns
from policysched.model import devices as d
from policysched.model.identifiers import NodeName, PodUid, ResourceClaimKey
from policysched.model.pods import ExtendedResourceRequest, PodResourceClaim
from policysched.model.quantity import parse_quantity
from policysched.model.selectors import NodeSelectorTerm, SelectorRequirement

Json = Mapping[str, Any]

EXTENDED_RESOURCE_CLAIM_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
"""Marks claims that a scheduler created for a pod's extended resources."""


def decode_device_claim_uses(
    spec: Json, status: Json, namespace: str, uid: PodUid
) -> tuple[PodResourceClaim, ...]:
    """The device claims of a pod. The status names a claim from a template once it is created; an entry there without a
    name means that no claim is needed."""
    made = {
        text(one["name"]): one.get("resourceClaimName") for one in status.get("resourceClaimStatuses") or ()
    }
    found = []
    for one in spec.get("resourceClaims") or ():
        if one.get("resourceClaimName") is not None:
            key = ResourceClaimKey(namespace, text(one["resourceClaimName"]))
            found.append(PodResourceClaim(key, None))
        elif one.get("resourceClaimTemplateName") is None:
            continue  # reported by `has_unknown_claim_kind`
        elif one["name"] not in made:
            found.append(PodResourceClaim(None, uid))
        elif made[one["name"]] is not None:
            found.append(PodResourceClaim(ResourceClaimKey(namespace, text(made[one["name"]])), uid))
    return tuple(found)


def has_unknown_claim_kind(spec: Json) -> bool:
    """Whether a pod has a claim that is given neither by name nor by template."""
    kinds = ("resourceClaimName", "resourceClaimTemplateName")
    return any(all(one.get(kind) is None for kind in kinds) for one in spec.get("resourceClaims") or ())


def decode_extended_requests(spec: Json) -> tuple[ExtendedResourceRequest, ...]:
    """The extended resource requests of a pod's containers, in order."""
    inits, found = len(spec.get("initContainers") or ()), []
    for index, one in enumerate((*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))):
        resources = one.get("resources") or {}
        # The API server copies limits to missing requests; manifests in files lack that defaulting.
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for place, name in enumerate(sorted(asked)):
            if not may_be_device_resource(name):
                continue
            amount = ceil(_amount(asked[name], f"resources.requests.{name}"))
            if amount > 0:
                passing = index < inits and one.get("restartPolicy") != "Always"
                found.append(ExtendedResourceRequest(text(one["name"]), index, passing, name, place, amount))
    return tuple(found)


def decode_resource_claim(obj: Json) -> d.ResourceClaim:
    """A resource.k8s.io/v1 ResourceClaim. Raises Malformed."""
    return decode_object("ResourceClaim", obj, _claim)


def decode_resource_slice(obj: Json) -> d.ResourceSlice:
    """A resource.k8s.io/v1 ResourceSlice. Raises Malformed."""
    return decode_object("ResourceSlice", obj, _slice)


def decode_device_class(obj: Json) -> d.DeviceClass:
    """A resource.k8s.io/v1 DeviceClass. Raises Malformed."""
    return decode_object("DeviceClass", obj, _class)


DEVICE_DECODERS: Mapping[d.DeviceKind, Callable[[Json], d.DeviceObject]] = {
    "ResourceClaim": decode_resource_claim,
    "ResourceSlice": decode_resource_slice,
    "DeviceClass": decode_device_class,
}


# ── claims ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _claim(obj: Json) -> d.ResourceClaim:
    meta, status = obj["metadata"], obj.get("status") or {}
    devices = (obj.get("spec") or {}).get("devices") or {}
    key = ResourceClaimKey(text(meta.get("namespace") or "default"), text(meta["name"]))
    owners: list[Json] = [one for one in meta.get("ownerReferences") or () if one.get("controller")]
    given = status.get("allocation")
    return d.ResourceClaim(
        key=key,
        uid=text(meta.get("uid") or str(key)),
        version=resource_version(meta),
        deleting=meta.get("deletionTimestamp") is not None,
        controller_uid=PodUid(text(owners[0]["uid"])) if owners else None,
        spec_text=_json(devices),
        requests=tuple(_request(one) for one in devices.get("requests") or ()),
        constraints=tuple(_constraint(one) for one in devices.get("constraints") or ()),
        configs=tuple(
            d.DeviceClaimConfig(_text_tuple(one.get("requests")), _config(one))
            for one in devices.get("config") or ()
        ),
        allocation=None if given is None else decode_allocation(given),
        reserved_for=tuple(_consumer(one) for one in status.get("reservedFor") or ()),
        finalizers=_text_tuple(meta.get("finalizers")),
        for_extended_resources=(meta.get("annotations") or {}).get(EXTENDED_RESOURCE_CLAIM_ANNOTATION)
        == "true",
        device_statuses=tuple(_device_status(one) for one in status.get("devices") or ()),
    )


def _device_status(one: Json) -> d.DeviceStatus:
    return d.DeviceStatus(
        d.DeviceId(text(one["driver"]), text(one["pool"]), text(one["device"])),
        tuple(
            d.DeviceCondition(
                text(each["type"]),
                text(each["status"]),
                text(each.get("reason") or ""),
                text(each.get("message") or ""),
            )
            for each in one.get("conditions") or ()
        ),
    )


def _request(one: Json) -> d.DeviceRequest:
    exactly = one.get("exactly")
    return d.DeviceRequest(
        name=text(one["name"]),
        exactly=None if exactly is None else _device_subrequest(text(one["name"]), exactly),
        first_available=tuple(
            _device_subrequest(text(sub["name"]), sub) for sub in one.get("firstAvailable") or ()
        ),
    )


def _device_subrequest(name: str, one: Json) -> d.ExactDeviceRequest:
    tolerations = one.get("tolerations") or []
    return d.ExactDeviceRequest(
        name=name,
        class_name=text(one.get("deviceClassName") or ""),
        selectors=_selectors(one),
        # Defaults of the API server, for manifests in files.
        mode=text(one.get("allocationMode") or "ExactCount"),
        count=int(one.get("count") or 1),
        admin_access=one.get("adminAccess") is True,
        tolerations=tuple(
            d.DeviceToleration(
                text(each.get("key") or ""),
                text(each.get("operator") or "Equal"),
                text(each.get("value") or ""),
                text(each.get("effect") or ""),
            )
            for each in tolerations
        ),
        tolerations_json=_json(tolerations),
        capacity=_amounts((one.get("capacity") or {}).get("requests"), "capacity.requests"),
    )


def _selectors(one: Json) -> tuple[str | None, ...]:
    """None for a selector of an unknown kind."""
    return tuple(
        text(each["cel"]["expression"]) if each.get("cel") is not None else None
        for each in one.get("selectors") or ()
    )


def _constraint(one: Json) -> d.DeviceConstraint:
    requests = frozenset(_text_tuple(one.get("requests")))
    if one.get("matchAttribute") is not None:
        return d.DeviceConstraint("match", requests, text(one["matchAttribute"]))
    if one.get("distinctAttribute") is not None:
        return d.DeviceConstraint("distinct", requests, text(one["distinctAttribute"]))
    return d.DeviceConstraint("other", requests, "")


def _config(one: Json) -> str:
    """The part that is copied to the allocation: `opaque`, or kinds of later versions."""
    return _json({key: value for key, value in one.items() if key not in ("requests", "source")})


def _consumer(one: Json) -> d.ClaimConsumer:
    return d.ClaimConsumer(
        text(one.get("apiGroup") or ""), text(one["resource"]), text(one["name"]), text(one["uid"])
    )


def decode_allocation(given: Json) -> d.DeviceAllocation:
    """`status.allocation` of a claim."""
    devices = given.get("devices") or {}
    return d.DeviceAllocation(
        devices=tuple(_allocated_device(one) for one in devices.get("results") or ()),
        configs=tuple(
            d.DeviceAllocationConfig(
                "FromClass" if one.get("source") == "FromClass" else "FromClaim",
                _text_tuple(one.get("requests")),
                _config(one),
            )
            for one in devices.get("config") or ()
        ),
        node_selector_terms=decode_node_selector(given.get("nodeSelector")),
        allocated_ns=time_ns(given["allocationTimestamp"]) if given.get("allocationTimestamp") else None,
    )


def _allocated_device(one: Json) -> d.AllocatedDevice:
    consumed = _amounts(one.get("consumedCapacity"), "consumedCapacity")
    return d.AllocatedDevice(
        request=text(one["request"]),
        device=d.DeviceId(text(one["driver"]), text(one["pool"]), text(one["device"])),
        admin_access=one.get("adminAccess") is True,
        share_id=text(one.get("shareID") or ""),
        consumed_capacity=tuple(sorted(consumed.items())),
        tolerations=_json(one.get("tolerations") or []),
        binding_conditions=_text_tuple(one.get("bindingConditions")),
        binding_failure_conditions=_text_tuple(one.get("bindingFailureConditions")),
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
        devices=tuple(_device(one) for one in spec.get("devices") or ()),
        counters={
            text(one["name"]): _values(one.get("counters"), "sharedCounters")
            for one in spec.get("sharedCounters") or ()
        },
    )


def _reach(spec: Json) -> d.AccessibleNodes:
    node = spec.get("nodeName")
    return d.AccessibleNodes(
        node=NodeName(text(node)) if node else None,
        all_nodes=spec.get("allNodes") is True,
        terms=decode_node_selector(spec.get("nodeSelector")),
    )


def _device(one: Json) -> d.Device:
    return d.Device(
        name=text(one["name"]),
        attributes={text(name): _attribute(value) for name, value in (one.get("attributes") or {}).items()},
        capacity={text(name): _capacity(value) for name, value in (one.get("capacity") or {}).items()},
        consumes_counters=tuple(
            d.CounterConsumption(text(use["counterSet"]), _values(use.get("counters"), "consumesCounters"))
            for use in one.get("consumesCounters") or ()
        ),
        accessible_nodes=_reach(one),
        taints=tuple(
            d.DeviceTaint(text(each["key"]), text(each.get("value") or ""), text(each.get("effect") or ""))
            for each in one.get("taints") or ()
        ),
        binds_to_node=one.get("bindsToNode") is True,
        binding_conditions=_text_tuple(one.get("bindingConditions")),
        binding_failure_conditions=_text_tuple(one.get("bindingFailureConditions")),
        shareable=one.get("allowMultipleAllocations") is True,
    )


def _attribute(one: Json) -> d.DeviceAttribute:
    if isinstance(one.get("string"), str):
        return d.DeviceAttribute("string", one["string"])
    if isinstance(one.get("bool"), bool):
        return d.DeviceAttribute("bool", one["bool"])
    if isinstance(one.get("int"), int):
        return d.DeviceAttribute("int", one["int"])
    if isinstance(one.get("version"), str):
        return d.DeviceAttribute("version", one["version"])
    return d.DeviceAttribute("other", "")


def _capacity(one: Json) -> d.DeviceCapacity:
    policy = one.get("requestPolicy")
    return d.DeviceCapacity(_amount(one["value"], "capacity"), None if policy is None else _policy(policy))


def _policy(one: Json) -> d.CapacityRequestPolicy:
    limits = one.get("validRange")
    least, most, step = ((limits or {}).get(name) for name in ("min", "max", "step"))
    return d.CapacityRequestPolicy(
        default=_optional_amount(one.get("default")),
        valid_values=tuple(_amount(each, "validValues") for each in one.get("validValues") or ()),
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
        configs=tuple(_config(one) for one in spec.get("config") or ()),
        extended_resource_name=text(spec.get("extendedResourceName") or ""),
        created_ns=time_ns(obj["metadata"].get("creationTimestamp")),
    )


# ── helpers ──────────────────────────────────────────────────────────────────────────────────────────────────


def _amounts(found: Json | None, field: str) -> dict[str, Fraction]:
    return {text(name): _amount(value, field) for name, value in (found or {}).items()}


def _values(found: Json | None, field: str) -> dict[str, Fraction]:
    return {text(name): _amount(one["value"], field) for name, one in (found or {}).items()}


def _optional_amount(value: Any) -> Fraction | None:
    return None if value is None else _amount(value, "requestPolicy")


def _amount(value: Any, field: str) -> Fraction:
    try:
        return parse_quantity(value if isinstance(value, str) else str(value))
    except ValueError as error:
        raise InvalidField(field, str(error)) from error


def _text_tuple(found: Iterable[Any] | None) -> tuple[str, ...]:
    return tuple(text(one) for one in found or ())


def _json(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


# ── encoding ──────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_allocation(given: d.DeviceAllocation, at_ns: int) -> dict[str, Any]:
    """`status.allocation` of a claim that is allocated now."""
    devices: dict[str, Any] = {"results": [_allocated_json(one) for one in given.devices]}
    if given.configs:
        devices["config"] = [
            {"source": one.source, "requests": list(one.requests), **orjson.loads(one.config)}
            for one in given.configs
        ]
    at = datetime.fromtimestamp(at_ns // 10**9, UTC).isoformat().replace("+00:00", "Z")
    written: dict[str, Any] = {"devices": devices, "allocationTimestamp": at}
    if given.node_selector_terms is not None:
        written["nodeSelector"] = {
            "nodeSelectorTerms": [_term_json(term) for term in given.node_selector_terms]
        }
    return written


def _allocated_json(one: d.AllocatedDevice) -> dict[str, Any]:
    driver, pool, device = one.device
    written: dict[str, Any] = {"request": one.request, "driver": driver, "pool": pool, "device": device}
    if one.admin_access:
        written["adminAccess"] = True
    tolerations = orjson.loads(one.tolerations)
    if tolerations:
        written["tolerations"] = tolerations
    if one.share_id:
        written["shareID"] = one.share_id
    if one.consumed_capacity:
        written["consumedCapacity"] = {name: quantity_text(amount) for name, amount in one.consumed_capacity}
    if one.binding_conditions:
        written["bindingConditions"] = list(one.binding_conditions)
    if one.binding_failure_conditions:
        written["bindingFailureConditions"] = list(one.binding_failure_conditions)
    return written


def _term_json(term: NodeSelectorTerm) -> dict[str, Any]:
    written = {}
    for name, requirements in (("matchExpressions", term.expressions), ("matchFields", term.fields)):
        if requirements:
            written[name] = [_requirement_json(one) for one in requirements]
    return written


def _requirement_json(one: SelectorRequirement) -> dict[str, Any]:
    values = {"values": list(one.values)} if one.values else {}
    return {"key": one.key, "operator": one.operator, **values}
