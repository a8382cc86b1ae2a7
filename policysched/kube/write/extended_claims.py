"""The claim that a scheduler creates for a pod's extended resources: create, allocate, record on the pod, delete.

    decided ──POST claim──PATCH its status──PATCH the pod's status──► written
                 │                                     └── the field was dropped: refused, and the claim is deleted
                 └── 409: it exists; if it is ours, the response to an earlier POST was lost

An API server without the feature gate DRAExtendedResource drops the field of the pod's status without an error. The
kubelet would reject the pod then, so the answer is read before the pod is bound.
The claim's name is chosen with the decision and used once, so a POST can be repeated and a late one affects no other pod. The
pod owns it, so it is deleted with the pod. The finalizer is set from the start, since no other pod may use the claim.
Source: `createExtendedResourceClaimInAPI`, `patchPodExtendedResourceClaimStatus` and `deleteClaim` in kubernetes'
`pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go`.
"""

from typing import Any, Protocol

from policysched.kube.client.api import Conflict, NotFound
from policysched.kube.decode.devices import EXTENDED_RESOURCE_CLAIM_ANNOTATION, decode_resource_claim
from policysched.kube.decode.errors import MalformedObject
from policysched.kube.write import resource_claims
from policysched.model.devices import ClaimConsumer, DeviceRequest, ResourceClaim
from policysched.model.identifiers import PodUid
from policysched.scheduler.commands import ClaimToCreate, ClaimToReserve, DeleteExtendedClaim

Json = dict[str, Any]


STATUS_DROPPED = (
    "the API server dropped status.extendedResourceClaimStatus of the pod, which the kubelet needs: "
    "the feature gate DRAExtendedResource is off (use filter dynamic_resources { extended_resources = no })"
)


class ClaimCreationApi(resource_claims.ResourceClaimApi, Protocol):
    """Requests that are retried until they have a final response."""

    async def create(self, path: str, body: Json) -> Json: ...

    async def patch_whole(self, path: str, body: Json) -> Json:
        """A patch that returns the whole object."""
        ...


class ClaimDeletionApi(resource_claims.ResourceClaimApi, Protocol):
    """As `ClaimCreationApi`."""

    async def delete(self, path: str, options: Json) -> None: ...


async def create_claim(api: ClaimCreationApi, wanted: ClaimToCreate, pod: ClaimConsumer) -> int:
    """Returns the version in which the claim is allocated and reserved for the pod. Raises ApiStatusError, ClaimNotReserved,
    or RequestAbandoned."""
    namespace = wanted.claim.namespace
    try:
        obj = await api.create(_claims_path(namespace), claim_manifest(wanted, pod))
    except Conflict:
        obj = await api.get(resource_claims.resource_claim_path(wanted.claim))
    claim = _decode_claim(obj)
    if not _is_made_for(claim, PodUid(pod.uid)) or claim.deleting:
        raise resource_claims.ClaimNotReserved(f"claim {wanted.claim} is not for pod {namespace}/{pod.name}")
    version = await resource_claims.reserve_claim(
        api,
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
    answer = await api.patch_whole(
        f"/api/v1/namespaces/{namespace}/pods/{pod.name}/status", pod_status_patch(wanted, pod)
    )
    if not _names_claim(answer, wanted.claim.name):
        raise resource_claims.ClaimNotReserved(STATUS_DROPPED)
    return version


async def delete_claim(api: ClaimDeletionApi, command: DeleteExtendedClaim) -> str | None:
    """Returns the UID of the deleted claim, "" if there was none, None if it still exists. Raises as `create_claim`."""
    path = resource_claims.resource_claim_path(command.claim)
    uid = ""
    try:
        claim = _decode_claim(await api.get(path))
        if not _is_made_for(claim, command.uid):
            # Users of the namespace can edit what says that it is the pod's. It holds its devices as long as it exists.
            return "" if claim.allocation is None else None
        uid = claim.uid
        finalizers = claim.finalizers or ()
        if resource_claims.FINALIZER in finalizers:
            remaining = [name for name in finalizers if name != resource_claims.FINALIZER]
            meta = {"uid": claim.uid, "resourceVersion": str(claim.version), "finalizers": remaining or None}
            await api.patch(path, {"metadata": meta})
        await api.delete(path, {"preconditions": {"uid": claim.uid}})
        await api.get(path)
    except NotFound:
        return uid
    return None


def claim_manifest(wanted: ClaimToCreate, pod: ClaimConsumer) -> Json:
    """The manifest of the claim."""
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
        "spec": {"devices": {"requests": [_request(request) for request in wanted.requests]}},
    }


def _request(request: DeviceRequest) -> Json:
    exact = request.exactly
    assert exact is not None, f"{request} has no exact request"
    exactly = {"deviceClassName": exact.class_name, "allocationMode": exact.mode, "count": exact.count}
    return {"name": request.name, "exactly": exactly}


def pod_status_patch(wanted: ClaimToCreate, pod: ClaimConsumer) -> Json:
    """The patch from which the kubelet learns the devices of each container."""
    mappings = [
        {
            "containerName": mapping.container,
            "resourceName": mapping.resource,
            "requestName": mapping.request,
        }
        for mapping in wanted.mapped
    ]
    claim_status = {"resourceClaimName": wanted.claim.name, "requestMappings": mappings}
    return {"metadata": {"uid": pod.uid}, "status": {"extendedResourceClaimStatus": claim_status}}


def _names_claim(pod: Json, claim: str) -> bool:
    claim_status = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    return bool(claim_status.get("resourceClaimName") == claim)


def _claims_path(namespace: str) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"


def _decode_claim(obj: Json) -> ResourceClaim:
    try:
        return decode_resource_claim(obj)
    except MalformedObject as error:
        raise resource_claims.ClaimNotReserved(str(error)) from error


def _is_made_for(claim: ResourceClaim, pod: PodUid) -> bool:
    return claim.for_extended_resources and claim.controller_uid == pod
