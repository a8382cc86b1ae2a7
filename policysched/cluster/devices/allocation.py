"""Turns a search result into the allocation in a claim's status: devices, configurations and node
selector."""

from dataclasses import replace
from hashlib import blake2b

from policysched.cluster.devices.allocator import DeviceSearchResult
from policysched.cluster.devices.taken_devices import ChosenDevice
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
    result: DeviceSearchResult, index: int, claim: ResourceClaim, node: Node
) -> DeviceAllocation:
    """The allocation of the claim at this index of the search."""
    devices = result.devices[index]
    return DeviceAllocation(
        devices=tuple(
            _allocated_device(chosen, claim, device_index) for device_index, chosen in enumerate(devices)
        ),
        configs=tuple(
            replace(config, requests=_requests_unless_all(config.requests, result, index, claim))
            for config in (*_class_configs(result, index), *_claim_configs(result, index, claim))
        ),
        node_selector_terms=_node_selector_terms(devices, node),
    )


def _allocated_device(chosen: ChosenDevice, claim: ResourceClaim, index: int) -> AllocatedDevice:
    return AllocatedDevice(
        request=chosen.option.full_name,
        device=chosen.id,
        admin_access=chosen.option.request.admin_access,
        share_id="" if chosen.consumed_capacity is None else _share_id(claim, chosen, index),
        consumed_capacity=tuple(sorted((chosen.consumed_capacity or {}).items())),
        tolerations=chosen.option.request.tolerations_json,
        binding_conditions=chosen.device.binding_conditions,
        binding_failure_conditions=chosen.device.binding_failure_conditions,
    )


def _share_id(claim: ResourceClaim, chosen: ChosenDevice, index: int) -> str:
    """A unique UUID that is the same in every replay."""
    identity = f"{claim.uid or claim.key} {claim.version} {index} {chosen.option.full_name} {chosen.id}"
    digits = blake2b(identity.encode(), digest_size=16).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"


def _class_configs(result: DeviceSearchResult, index: int) -> list[DeviceAllocationConfig]:
    """The configurations of each class, once for all requests of the class."""
    requests: dict[str, list[str]] = {}
    configs: dict[str, tuple[str, ...]] = {}
    for option in result.options[index]:
        requests.setdefault(option.device_class.name, []).append(option.full_name)
        configs[option.device_class.name] = option.device_class.configs
    return [
        DeviceAllocationConfig("FromClass", tuple(requests[name]), config)
        for name, config_entry in configs.items()
        for config in config_entry
    ]


def _claim_configs(
    result: DeviceSearchResult, index: int, claim: ResourceClaim
) -> list[DeviceAllocationConfig]:
    """The configurations for all requests, and those that name a request or its chosen alternative."""
    configs = []
    for config in claim.configs:
        if not config.requests:
            configs.append(DeviceAllocationConfig("FromClaim", (), config.config))
        elif any(
            request.name in config.requests or option.full_name in config.requests
            for request, option in zip(claim.requests, result.options[index], strict=True)
        ):
            configs.append(DeviceAllocationConfig("FromClaim", config.requests, config.config))
    return configs


def _requests_unless_all(
    requests: tuple[str, ...], result: DeviceSearchResult, index: int, claim: ResourceClaim
) -> tuple[str, ...]:
    """Empty, which means all, for a configuration of all requests, as in kube-scheduler since 1.37."""
    names = zip(claim.requests, result.options[index], strict=True)
    covers_all = all(request.name in requests or option.full_name in requests for request, option in names)
    return () if covers_all else requests


def _node_selector_terms(devices: tuple[ChosenDevice, ...], node: Node) -> NodeSelectorTerms | None:
    """The node only, if a device is local or binds to it; else all terms of the devices. None:
    every node."""
    expressions: list[SelectorRequirement] = []
    fields: list[SelectorRequirement] = []
    for chosen in devices:
        reach = chosen.slice.accessible_nodes_of(chosen.device)
        if reach.node is not None or chosen.device.binds_to_node:
            node_requirement = SelectorRequirement("metadata.name", "In", (str(node.name),))
            return (NodeSelectorTerm(expressions=(), fields=(node_requirement,)),)
        for term in reach.terms or ():
            expressions += [requirement for requirement in term.expressions if requirement not in expressions]
            fields += [requirement for requirement in term.fields if requirement not in fields]
    if not expressions and not fields:
        return None
    return (NodeSelectorTerm(tuple(expressions), tuple(fields)),)


def allocation_score(claim: ResourceClaim, allocation: DeviceAllocation) -> int:
    """The score is higher for alternatives earlier in their lists. Source: `computeScore` in
    kubernetes' `pkg/scheduler/framework/plugins/dynamicresources`."""
    satisfied_requests = {device.request for device in allocation.devices}
    return sum(
        FIRST_AVAILABLE_MAX - index
        for request in claim.requests
        for index, ask in enumerate(request.first_available)
        if f"{request.name}/{ask.name}" in satisfied_requests
    )


def search_result_score(result: DeviceSearchResult) -> int:
    """As `allocation_score`, for a search result that is not allocated yet."""
    return sum(
        FIRST_AVAILABLE_MAX - index
        for options, chosen in zip(result.options, result.alternatives, strict=True)
        for option, index in zip(options, chosen, strict=True)
        if option.parent_request
    )
