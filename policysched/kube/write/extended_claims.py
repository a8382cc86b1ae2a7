"""The claim that a scheduler makes for a pod's extended resources: made, given its devices, told to the pod, taken away.

    decided ──POST claim──PATCH its status──PATCH the pod's status──► written
                 └── 409: it is there; ours? then the answer to an earlier POST was lost

Its name was chosen with the decision and is used once, so that a POST may be repeated until it is answered and what comes
late means nobody else. Its owner is the pod, so that it ends with the pod wherever we are then. The finalizer is there from the start, as
nobody but the pod is to have it. Source: `createExtendedResourceClaimInAPI`, `patchPodExtendedResourceClaimStatus` and
`deleteClaim` in kubernetes' `pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go`.
"""

from typing import Any, Protocol

from policysched.kube.client.api import Conflict, NotFound
from policysched.kube.decode.devices import EXTENDED_RESOURCE_CLAIM_ANNOTATION, decode_resource_claim
from policysched.kube.decode.errors import Malformed
from policysched.kube.write import resource_claims
from policysched.model.devices import ClaimConsumer, DeviceRequest, ResourceClaim
from policysched.model.identifiers import PodUid
from policysched.scheduler.commands import ClaimToCreate, ClaimToReserve, DeleteExtendedClaim

Json = dict[str, Any]


class ExtendedClaimApi(resource_claims.ResourceClaimApi, Protocol):
    """Requests that are repeated until they are settled."""

    async def create(self, path: str, body: Json) -> Json: ...

    async def delete(self, path: str, options: Json) -> None: ...


async def create_claim(wire: ExtendedClaimApi, wanted: ClaimToCreate, pod: ClaimConsumer) -> int:
    """The version that says that the claim has its devices and is reserved for the pod. Raises Refused, NotReserved, or
    what the wire raises when it gives up."""
    namespace = wanted.claim.namespace
    try:
        found = await wire.create(_claims_path(namespace), claim_manifest(wanted, pod))
    except Conflict:
        found = await wire.get(resource_claims.resource_claim_path(wanted.claim))
    claim = _decode_claim(found)
    if not _is_made_for(claim, PodUid(pod.uid)) or claim.deleting:
        raise resource_claims.ClaimNotReserved(f"claim {wanted.claim} is not for pod {namespace}/{pod.name}")
    version = await resource_claims.reserve_claim(
        wire,
        ClaimToReserve(
            claim=claim.key,
            uid=claim.uid,
            version=claim.version,
            allocation=wanted.allocation,
            finalizers=claim.finalizers,
            reserved_for=claim.reserved_for,
            at_ns=wanted.at_ns,
        ),
        pod,
    )
    await wire.patch(f"/api/v1/namespaces/{namespace}/pods/{pod.name}/status", pod_status_patch(wanted, pod))
    return version


async def delete_claim(wire: ExtendedClaimApi, command: DeleteExtendedClaim) -> bool:
    """Whether it is not there any more. Raises as `create_claim`."""
    path = resource_claims.resource_claim_path(command.claim)
    try:
        claim = _decode_claim(await wire.get(path))
        if not _is_made_for(claim, command.uid):
            return True
        if resource_claims.FINALIZER in claim.finalizers:
            left = [one for one in claim.finalizers if one != resource_claims.FINALIZER]
            meta = {"uid": claim.uid, "resourceVersion": str(claim.version), "finalizers": left or None}
            await wire.patch(path, {"metadata": meta})
        await wire.delete(path, {"preconditions": {"uid": claim.uid}})
        await wire.get(path)
    except NotFound:
        return True
    return False


def claim_manifest(wanted: ClaimToCreate, pod: ClaimConsumer) -> Json:
    """The claim as it is made."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": wanted.claim.name,
            "namespace": wanted.claim.namespace,
            "annotations": {EXTENDED_RESOURCE_CLAIM_ANNOTATION: "true"},
            "finalizers": [resource_claims.FINALIZER],
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": True}
            ],
        },
        "spec": {"devices": {"requests": [_request(one) for one in wanted.requests]}},
    }


def _request(one: DeviceRequest) -> Json:
    ask = one.exactly
    assert ask is not None, f"{one} asks for nothing"
    exactly = {"deviceClassName": ask.class_name, "allocationMode": ask.mode, "count": ask.count}
    return {"name": one.name, "exactly": exactly}


def pod_status_patch(wanted: ClaimToCreate, pod: ClaimConsumer) -> Json:
    """The patch that tells the kubelet whose devices each container gets."""
    mappings = [
        {"containerName": one.container, "resourceName": one.resource, "requestName": one.request}
        for one in wanted.mapped
    ]
    told = {"resourceClaimName": wanted.claim.name, "requestMappings": mappings}
    return {"metadata": {"uid": pod.uid}, "status": {"extendedResourceClaimStatus": told}}


def _claims_path(namespace: str) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"


def _decode_claim(found: Json) -> ResourceClaim:
    try:
        return decode_resource_claim(found)
    except Malformed as error:
        raise resource_claims.ClaimNotReserved(str(error)) from error


def _is_made_for(claim: ResourceClaim, pod: PodUid) -> bool:
    return claim.for_extended_resources and claim.controller_uid == pod
