"""Compare the devices that a pod's claims get on the recorded node with the recorded allocations.

kube-scheduler searches a node's devices in a fixed order, so allocations are deterministic, and so
is the claim that it creates for extended resources. Times, names of created claims and share IDs
are not compared.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.extended_resources import ExtendedResourceMapping
from policysched.cluster.devices.pod_claims import choose_devices, pod_resource_claims
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.kube.decode import devices
from policysched.model.devices import DeviceAllocation, DeviceAllocationConfig, ResourceClaim
from policysched.model.identifiers import NodeName
from tests.conformance.cluster_case import Decision


def compare_devices(decision: Decision) -> list[str]:
    """A sentence for each difference. The decision is recorded with a node."""
    cache, pod, expected = decision.cache, decision.pod, decision.expected
    stock = AvailableDevices(cache.devices)
    choice_or_reason = pod_resource_claims(pod, stock)
    if isinstance(choice_or_reason, str):
        return [f"{choice_or_reason}, recorded with devices"]
    choice = choose_devices(pod, choice_or_reason, cache.nodes[NodeName(expected["nodeName"])], stock)
    if isinstance(choice, str):
        return [f"{choice} on {expected['nodeName']}, recorded with devices there"]
    claims = [devices.decode_resource_claim(claim) for claim in expected["claims"]]
    own = [claim for claim in claims if not claim.for_extended_resources]
    differences = _of_own(choice, {str(claim.key): claim for claim in own})
    return differences + _of_extended(
        choice, [claim for claim in claims if claim.for_extended_resources], expected["extended"]
    )


def _of_own(choice: DeviceChoice, recorded: Mapping[str, ResourceClaim]) -> list[str]:
    given = {str(claim.key): allocation for claim, allocation in choice.allocated if claim.uid}
    touched = {*given, *(str(claim.key) for claim in choice.reserved)}
    differences = (
        [] if touched == recorded.keys() else [f"claims {sorted(touched)}, recorded {sorted(recorded)}"]
    )
    for key, allocation in given.items():
        recorded_claim = recorded.get(key)
        if recorded_claim is None or _comparable(allocation, recorded_claim) != _comparable(
            recorded_claim.allocation, recorded_claim
        ):
            differences.append(
                f"{key} gets {allocation}, recorded {recorded_claim and recorded_claim.allocation}"
            )
    return differences


def _of_extended(choice: DeviceChoice, recorded: list[ResourceClaim], status: Any) -> list[str]:
    if choice.claim_to_create is None or not recorded:
        return (
            []
            if choice.claim_to_create is None and not recorded
            else [f"makes {choice.claim_to_create}, recorded {recorded}"]
        )
    (made, allocation), (claim,) = choice.claim_to_create, recorded
    mapped = {
        ExtendedResourceMapping(mapping["containerName"], mapping["resourceName"], mapping["requestName"])
        for mapping in status["requestMappings"]
    }
    differences = []
    if made.requests != claim.requests:
        differences.append(f"makes a claim for {made.requests}, recorded {claim.requests}")
    if _comparable(allocation, claim) != _comparable(claim.allocation, claim):
        differences.append(f"the claim that is made gets {allocation}, recorded {claim.allocation}")
    if set(choice.extended_resource_mappings) != mapped:
        differences.append(f"containers use {choice.extended_resource_mappings}, recorded {mapped}")
    return differences


def _unless_all(config: DeviceAllocationConfig, claim: ResourceClaim) -> DeviceAllocationConfig:
    """Until 1.36, kube-scheduler names all requests where it names none since, and repeats itself."""
    named = {name.partition("/")[0] for name in config.requests}
    covers_all = all(request.name in named for request in claim.requests)
    return replace(config, requests=()) if covers_all else config


def _comparable(given: DeviceAllocation | None, claim: ResourceClaim) -> DeviceAllocation | None:
    if given is None:
        return None
    return replace(
        given,
        configs=tuple(dict.fromkeys(_unless_all(config, claim) for config in given.configs)),
        devices=tuple(
            replace(device, share_id="some" if device.share_id else "") for device in given.devices
        ),
    )
