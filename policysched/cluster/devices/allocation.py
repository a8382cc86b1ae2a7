"""What was found for a claim, as its status will say it: devices, configurations, and where it can be used."""

from hashlib import blake2b

from policysched.cluster.devices.allocator import ChosenDevice, DeviceSearchResult
from policysched.model.devices import (
    AllocatedDevice,
    DeviceAllocation,
    DeviceAllocationConfig,
    NodeSelectorTerms,
    ResourceClaim,
)
from policysched.model.nodes import Node
from policysched.model.selectors import NodeSelectorTerm, SelectorRequirement

FIRST_AVAILABLE_MAX = 8
"""Source: `FirstAvailableDeviceRequestMaxSize` of k8s.io/api/resource/v1."""


def build_allocation(
    found: DeviceSearchResult, index: int, claim: ResourceClaim, node: Node
) -> DeviceAllocation:
    """Of the claim at this place of the search."""
    devices = found.devices[index]
    return DeviceAllocation(
        devices=tuple(_allocated_device(one, claim, place) for place, one in enumerate(devices)),
        configs=(*_class_configs(found, index), *_claim_configs(found, index, claim)),
        node_selector_terms=_node_selector_terms(devices, node),
    )


def _allocated_device(one: ChosenDevice, claim: ResourceClaim, place: int) -> AllocatedDevice:
    return AllocatedDevice(
        request=one.option.full_name,
        device=one.id,
        admin_access=one.option.request.admin_access,
        share_id="" if one.consumed_capacity is None else _share_id(claim, one, place),
        consumed_capacity=tuple(sorted((one.consumed_capacity or {}).items())),
        tolerations=one.option.request.tolerations_json,
        binding_conditions=one.device.binding_conditions,
        binding_failure_conditions=one.device.binding_failure_conditions,
    )


def _share_id(claim: ResourceClaim, one: ChosenDevice, place: int) -> str:
    """A UUID that nobody else has, and that is the same in every replay."""
    told = f"{claim.uid or claim.key} {claim.version} {place} {one.option.full_name} {one.id}"
    digits = blake2b(told.encode(), digest_size=16).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"


def _class_configs(found: DeviceSearchResult, index: int) -> list[DeviceAllocationConfig]:
    """Each class's once, for all of the requests that name it."""
    requests: dict[str, list[str]] = {}
    configs: dict[str, tuple[str, ...]] = {}
    for option in found.options[index]:
        requests.setdefault(option.device_class.name, []).append(option.full_name)
        configs[option.device_class.name] = option.device_class.configs
    return [
        DeviceAllocationConfig("FromClass", tuple(requests[name]), config)
        for name, held in configs.items()
        for config in held
    ]


def _claim_configs(
    found: DeviceSearchResult, index: int, claim: ResourceClaim
) -> list[DeviceAllocationConfig]:
    """Those for all requests, and for each request, or alternative that was taken, those that name it."""
    configs = []
    for held in claim.configs:
        if not held.requests:
            configs.append(DeviceAllocationConfig("FromClaim", (), held.config))
        for request, option in zip(claim.requests, found.options[index], strict=True):
            if request.name in held.requests or option.full_name in held.requests:
                configs.append(DeviceAllocationConfig("FromClaim", held.requests, held.config))
    return configs


def _node_selector_terms(devices: tuple[ChosenDevice, ...], node: Node) -> NodeSelectorTerms | None:
    """The node alone where a device is its own or binds to it; else all that the devices ask of a node; None: nothing."""
    expressions: list[SelectorRequirement] = []
    fields: list[SelectorRequirement] = []
    for one in devices:
        reach = one.slice.accessible_nodes_of(one.device)
        if reach.node is not None or one.device.binds_to_node:
            only = SelectorRequirement("metadata.name", "In", (str(node.name),))
            return (NodeSelectorTerm(expressions=(), fields=(only,)),)
        for term in reach.terms or ():
            expressions += [asked for asked in term.expressions if asked not in expressions]
            fields += [asked for asked in term.fields if asked not in fields]
    if not expressions and not fields:
        return None
    return (NodeSelectorTerm(tuple(expressions), tuple(fields)),)


def allocation_score(claim: ResourceClaim, given: DeviceAllocation) -> int:
    """The earlier the alternatives that were taken stand in their lists, the more. Source: `computeScore` in kubernetes'
    `pkg/scheduler/framework/plugins/dynamicresources`."""
    taken = {one.request for one in given.devices}
    return sum(
        FIRST_AVAILABLE_MAX - place
        for request in claim.requests
        for place, ask in enumerate(request.first_available)
        if f"{request.name}/{ask.name}" in taken
    )


def search_result_score(found: DeviceSearchResult) -> int:
    """The same of what was found and is not allocated yet."""
    return sum(
        FIRST_AVAILABLE_MAX - place
        for options, places in zip(found.options, found.alternatives, strict=True)
        for option, place in zip(options, places, strict=True)
        if option.parent_request
    )
