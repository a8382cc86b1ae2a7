"""Writing into a claim for devices: which it has, for which pod it is reserved, and the reverse.

    as decided ──PATCH finalizer (if it gets devices)──PATCH status──► reserved
                     └── 409: read it; ours already? still to be had? ──► once more, on what was read

The finalizer comes first: from then on the claim is not gone before its devices are given back. Others write to a claim too (other pods
that share it, drivers), so a conflict is no refusal: what was read then says whether the decision still
stands. A write whose answer was lost is found by that. Source: `bindClaim` and `Unreserve` in kubernetes'
`pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from policysched.kube.client.api import Conflict
from policysched.kube.decode.devices import decode_resource_claim, encode_allocation
from policysched.kube.decode.errors import Malformed
from policysched.model.devices import ClaimConsumer, ResourceClaim
from policysched.model.identifiers import PodUid, ResourceClaimKey
from policysched.scheduler.commands import ClaimToReserve, Deallocate

Json = dict[str, Any]

FINALIZER = "resource.kubernetes.io/delete-protection"
CONFLICTS_MAX = 5


class ClaimNotReserved(Exception):
    """The decision does not stand any more: in kube-scheduler's words."""


class ResourceClaimApi(Protocol):
    """Requests that are repeated until they are settled. A merge patch."""

    async def patch(self, path: str, body: Json) -> Json: ...

    async def get(self, path: str) -> Json: ...


def resource_claim_path(key: ResourceClaimKey) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{key.namespace}/resourceclaims/{key.name}"


async def reserve_claim(wire: ResourceClaimApi, claim: ClaimToReserve, pod: ClaimConsumer) -> int:
    """The version that says that the claim has its devices and is reserved for the pod. Raises Refused, NotReserved, or
    what the wire raises when it gives up."""
    now = claim
    for _ in range(CONFLICTS_MAX):
        try:
            if now.allocation is not None and FINALIZER not in now.finalizers:
                finalizers = (*now.finalizers, FINALIZER)
                answer = await wire.patch(
                    resource_claim_path(now.claim), _metadata_patch(now, finalizers=list(finalizers))
                )
                now = replace(now, version=resource_version_of(answer), finalizers=finalizers)
            return resource_version_of(
                await wire.patch(f"{resource_claim_path(now.claim)}/status", _status_patch(now, pod))
            )
        except Conflict:
            found = await _remaining_write(wire, claim, pod)
            if isinstance(found, int):
                return found
            now = found
    raise ClaimNotReserved(f"claim {claim.claim} conflicted {CONFLICTS_MAX} times in a row")


async def _remaining_write(
    wire: ResourceClaimApi, claim: ClaimToReserve, pod: ClaimConsumer
) -> ClaimToReserve | int:
    """What is left to be written, or the version that has it all. Raises NotReserved."""
    seen = await _read_claim(wire, claim.claim)
    if seen.uid != claim.uid or seen.deleting:
        raise ClaimNotReserved(f"claim {claim.claim} got deleted in the meantime")
    if claim.allocation is None and seen.allocation is None:
        raise ClaimNotReserved(f"claim {claim.claim} got deallocated elsewhere in the meantime")
    decided_on = claim.current_allocation if claim.allocation is None else claim.allocation
    if (
        seen.allocation is not None
        and decided_on is not None
        and not decided_on.same_devices(seen.allocation)
    ):
        raise ClaimNotReserved(f"claim {claim.claim} got allocated elsewhere in the meantime")
    if seen.allocation is not None and seen.is_reserved_for(PodUid(pod.uid)):
        return seen.version
    return replace(
        claim,
        version=seen.version,
        allocation=claim.allocation if seen.allocation is None else None,
        finalizers=seen.finalizers,
        reserved_for=seen.reserved_for,
    )


async def _read_claim(wire: ResourceClaimApi, key: ResourceClaimKey) -> ResourceClaim:
    try:
        return decode_resource_claim(await wire.get(resource_claim_path(key)))
    except Malformed as error:
        raise ClaimNotReserved(str(error)) from error


async def unreserve_claim(wire: ResourceClaimApi, key: ResourceClaimKey, uid: str, pod: PodUid) -> None:
    """Take the pod off the claim's list, if it is there. Raises Refused, NotReserved, or what the wire raises when it
    gives up."""
    for _ in range(CONFLICTS_MAX):
        seen = await _read_claim(wire, key)
        if seen.uid != uid or not seen.is_reserved_for(pod):
            return
        left = [_consumer_json(one) for one in seen.reserved_for if one.uid != pod]
        body = {
            "metadata": {"uid": uid, "resourceVersion": str(seen.version)},
            "status": {"reservedFor": left or None},
        }
        try:
            await wire.patch(f"{resource_claim_path(key)}/status", body)
        except Conflict:
            continue
        return


async def deallocate_claim(wire: ResourceClaimApi, command: Deallocate) -> None:
    """Of another version than the one that was decided on nothing is written. Raises as `unreserve_claim`."""
    body = {
        "metadata": {"uid": command.uid, "resourceVersion": str(command.version)},
        "status": {"allocation": None, "reservedFor": None, "devices": None},
    }
    await wire.patch(f"{resource_claim_path(command.claim)}/status", body)


def _metadata_patch(claim: ClaimToReserve, **metadata: object) -> Json:
    return {"metadata": {"uid": claim.uid, "resourceVersion": str(claim.version), **metadata}}


def _status_patch(claim: ClaimToReserve, pod: ClaimConsumer) -> Json:
    status: Json = {"reservedFor": _consumers(claim.reserved_for, pod)}
    if claim.allocation is not None:
        status["allocation"] = encode_allocation(claim.allocation, claim.at_ns)
    return {**_metadata_patch(claim), "status": status}


def _consumers(known: Sequence[ClaimConsumer], pod: ClaimConsumer) -> list[Json]:
    return [_consumer_json(one) for one in (*(one for one in known if one.uid != pod.uid), pod)]


def _consumer_json(one: ClaimConsumer) -> Json:
    group = {"apiGroup": one.api_group} if one.api_group else {}
    return {**group, "resource": one.resource, "name": one.name, "uid": one.uid}


def resource_version_of(answer: Json) -> int:
    """Of the object as it is now. 0, which every version has reached, where the answer does not say."""
    meta = answer.get("metadata")
    written = meta.get("resourceVersion") if isinstance(meta, dict) else None
    return int(written) if isinstance(written, str) and written.isdecimal() else 0
