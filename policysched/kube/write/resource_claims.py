"""Writes to a ResourceClaim: allocate and reserve, unreserve, deallocate.

    as decided ──PATCH finalizer (if it is allocated)──PATCH status──► reserved
                     └── 409: read it; already ours, or still free? ──► retry on the version read

The finalizer is first: from then on the claim is not deleted before its devices are released. A claim has other writers
too (pods that share it, drivers), so after a conflict it is read again to see whether the decision still holds. That
also finds a write whose response was lost. Source: `bindClaim` and `Unreserve` in kubernetes'
`pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from policysched.kube.client.api import ApiStatusError, Conflict
from policysched.kube.decode.devices import decode_resource_claim, encode_allocation
from policysched.kube.decode.errors import MalformedObject
from policysched.model.devices import ClaimConsumer, ResourceClaim
from policysched.model.identifiers import PodUid, ResourceClaimKey
from policysched.scheduler.commands import ClaimToReserve, Deallocate

Json = dict[str, Any]

FINALIZER = "resource.kubernetes.io/delete-protection"
CONFLICTS_MAX = 5


class ClaimNotReserved(Exception):
    """The decision no longer holds; the message is kube-scheduler's."""


class ResourceClaimApi(Protocol):
    """Requests that are retried until they have a final response. `patch` sends a merge patch and returns the metadata alone."""

    async def patch(self, path: str, body: Json) -> Json: ...

    async def get(self, path: str) -> Json: ...

    async def settle(self) -> bool:
        """Wait until no earlier request can be carried out any more. Returns whether one could."""
        ...


def resource_claim_path(key: ResourceClaimKey) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{key.namespace}/resourceclaims/{key.name}"


async def reserve_claim(api: ResourceClaimApi, claim: ClaimToReserve, pod: ClaimConsumer) -> int:
    """Returns the version in which the claim is allocated and reserved for the pod. Raises ApiStatusError, ClaimNotReserved, or
    RequestAbandoned. The first two are raised only once no earlier request can be carried out any more."""
    try:
        return await _reserve_claim(api, claim, pod)
    except (ApiStatusError, ClaimNotReserved):
        if await api.settle():
            remaining = await _remaining_write(api, claim, pod)
            if isinstance(remaining, int):
                return remaining
        raise


async def _reserve_claim(api: ResourceClaimApi, claim: ClaimToReserve, pod: ClaimConsumer) -> int:
    remaining = await _remaining_write(api, claim, pod) if claim.finalizers is None else claim
    for _ in range(CONFLICTS_MAX):
        if isinstance(remaining, int):
            return remaining
        try:
            return await _write_reservation(api, remaining, pod)
        except Conflict:
            remaining = await _remaining_write(api, claim, pod)
    if isinstance(remaining, int):
        return remaining
    raise ClaimNotReserved(f"claim {claim.claim} conflicted {CONFLICTS_MAX} times in a row")


async def _write_reservation(api: ResourceClaimApi, claim: ClaimToReserve, pod: ClaimConsumer) -> int:
    """Returns the version that has it."""
    finalizers = claim.finalizers or ()
    if claim.allocation is not None and FINALIZER not in finalizers:
        patch = _metadata_patch(claim, finalizers=[*finalizers, FINALIZER])
        answer = await api.patch(resource_claim_path(claim.claim), patch)
        claim = replace(claim, version=resource_version_of(answer))
    answer = await api.patch(f"{resource_claim_path(claim.claim)}/status", _status_patch(claim, pod))
    return resource_version_of(answer)


async def _remaining_write(
    api: ResourceClaimApi, claim: ClaimToReserve, pod: ClaimConsumer
) -> ClaimToReserve | int:
    """What remains to be written, or the version that has all of it. Raises ClaimNotReserved."""
    current = await _read_claim(api, claim.claim)
    if current.uid != claim.uid or current.deleting:
        raise ClaimNotReserved(f"claim {claim.claim} got deleted in the meantime")
    if claim.allocation is None and current.allocation is None:
        raise ClaimNotReserved(f"claim {claim.claim} got deallocated elsewhere in the meantime")
    decided_on = claim.current_allocation if claim.allocation is None else claim.allocation
    if (
        current.allocation is not None
        and decided_on is not None
        and not decided_on.same_devices(current.allocation)
    ):
        raise ClaimNotReserved(f"claim {claim.claim} got allocated elsewhere in the meantime")
    if current.allocation is not None and current.is_reserved_for(PodUid(pod.uid)):
        return current.version
    return replace(
        claim,
        version=current.version,
        allocation=claim.allocation if current.allocation is None else None,
        finalizers=current.finalizers,
        reserved_for=current.reserved_for,
    )


async def _read_claim(api: ResourceClaimApi, key: ResourceClaimKey) -> ResourceClaim:
    try:
        return decode_resource_claim(await api.get(resource_claim_path(key)))
    except MalformedObject as error:
        raise ClaimNotReserved(str(error)) from error


async def unreserve_claim(
    api: ResourceClaimApi,
    key: ResourceClaimKey,
    uid: str,
    pod: PodUid,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Remove the pod from the claim's consumers, while `is_wanted()`. Raises ApiStatusError, ClaimNotReserved, or
    RequestAbandoned."""
    for _ in range(CONFLICTS_MAX):
        current = await _read_claim(api, key)
        if current.uid != uid or not current.is_reserved_for(pod) or not is_wanted():
            return
        remaining = [_consumer_json(consumer) for consumer in current.reserved_for if consumer.uid != pod]
        body = {
            "metadata": {"uid": uid, "resourceVersion": str(current.version)},
            "status": {"reservedFor": remaining or None},
        }
        try:
            await api.patch(f"{resource_claim_path(key)}/status", body)
        except Conflict:
            continue
        return


async def deallocate_claim(api: ResourceClaimApi, command: Deallocate) -> None:
    """Writes nothing unless the claim has the version of the decision. Raises as `unreserve_claim`."""
    body = {
        "metadata": {"uid": command.uid, "resourceVersion": str(command.version)},
        "status": {"allocation": None, "reservedFor": None, "devices": None},
    }
    await api.patch(f"{resource_claim_path(command.claim)}/status", body)


def _metadata_patch(claim: ClaimToReserve, **metadata: object) -> Json:
    return {"metadata": {"uid": claim.uid, "resourceVersion": str(claim.version), **metadata}}


def _status_patch(claim: ClaimToReserve, pod: ClaimConsumer) -> Json:
    status: Json = {"reservedFor": _consumers(claim.reserved_for, pod)}
    if claim.allocation is not None:
        status["allocation"] = encode_allocation(claim.allocation, claim.at_ns)
    return {**_metadata_patch(claim), "status": status}


def _consumers(consumers: Sequence[ClaimConsumer], pod: ClaimConsumer) -> list[Json]:
    others = (consumer for consumer in consumers if consumer.uid != pod.uid)
    return [_consumer_json(consumer) for consumer in (*others, pod)]


def _consumer_json(consumer: ClaimConsumer) -> Json:
    group = {"apiGroup": consumer.api_group} if consumer.api_group else {}
    return {**group, "resource": consumer.resource, "name": consumer.name, "uid": consumer.uid}


def resource_version_of(answer: Json) -> int:
    """The resourceVersion of the returned object; 0, below every version, if the response has none."""
    meta = answer.get("metadata")
    written = meta.get("resourceVersion") if isinstance(meta, dict) else None
    return int(written) if isinstance(written, str) and written.isdecimal() else 0
