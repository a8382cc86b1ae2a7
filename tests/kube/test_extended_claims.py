"""The claim that is made for a pod's extended resources: made once whatever is lost, told to the pod, taken away."""

import asyncio
from typing import Any

import pytest

from policysched.cluster.devices.extended_resources import ExtendedResourceMapping, requests_and_mappings
from policysched.kube.client.api import AdmissionDenied, Conflict, NotFound, status_error
from policysched.kube.decode import devices
from policysched.kube.write.extended_claims import create_claim, delete_claim
from policysched.kube.write.resource_claims import FINALIZER, ClaimNotReserved
from policysched.model.devices import ClaimConsumer, DeviceAllocation
from policysched.model.identifiers import PodUid, ResourceClaimKey
from policysched.model.pods import ExtendedResourceRequest
from policysched.scheduler.commands import ClaimToCreate, DeleteExtendedClaim
from tests.devices import claim_manifest, given

Json = dict[str, Any]
KEY = ResourceClaimKey("default", "web-extended-resources-0123456789")
WEB = ClaimConsumer("", "pods", "web", "uid-web")
GPU = "example.com/gpu"


class Server:
    """Claims by name, as the API server keeps them, and what the pod's status was told."""

    def __init__(self, *claims: Json, drops_pod_status: bool = False) -> None:
        """`drops_pod_status`: as without the feature gate DRAExtendedResource."""
        self._drops_pod_status = drops_pod_status
        self.claims = {claim["metadata"]["name"]: claim for claim in claims}
        self.told: list[Json] = []
        self.version = 10

    def _stored(self, name: str, obj: Json) -> Json:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.claims[name] = obj
        return obj

    def _claim(self, path: str) -> Json:
        name = path.removesuffix("/status").rpartition("/")[2]
        if name not in self.claims:
            raise NotFound(404, "NotFound", f"{name} not found")
        return self.claims[name]

    async def create(self, path: str, body: Json) -> Json:
        assert path == "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
        name = body["metadata"]["name"]
        if name in self.claims:
            raise Conflict(409, "AlreadyExists", f"{name} already exists")
        return self._stored(name, {**body, "metadata": {**body["metadata"], "uid": f"uid-{name}"}})

    async def patch_whole(self, path: str, body: Json) -> Json:
        assert path == "/api/v1/namespaces/default/pods/web/status"
        self.told.append(body)
        return {**body, "status": {"phase": "Pending"}} if self._drops_pod_status else body

    async def settle(self) -> bool:
        return False

    async def patch(self, path: str, body: Json) -> Json:
        claim = self._claim(path)
        meta, wanted = claim["metadata"], body["metadata"]
        if wanted["resourceVersion"] != meta["resourceVersion"]:
            raise Conflict(409, "Conflict", "the object has been modified")
        changed = {**claim, "metadata": {**meta, **wanted}}
        if path.endswith("/status"):
            changed["status"] = {**claim.get("status", {}), **body["status"]}
        return self._stored(meta["name"], changed)

    async def delete(self, path: str, options: Json) -> None:
        claim = self._claim(path)
        assert options == {"preconditions": {"uid": claim["metadata"]["uid"]}}
        if not claim["metadata"].get("finalizers"):
            del self.claims[claim["metadata"]["name"]]

    async def get(self, path: str) -> Json:
        return self._claim(path)


def wanted() -> ClaimToCreate:
    extended = (ExtendedResourceRequest("main", 0, False, GPU, 1, 2),)
    requests, mapped = requests_and_mappings(extended, {GPU: "gpu"})
    allocation = devices.decode_allocation(given("g0", "g1", request="container-0-request-1")["allocation"])
    assert isinstance(allocation, DeviceAllocation)
    return ClaimToCreate(KEY, requests, allocation, mapped, at_ns=1_800_000_000 * 10**9)


def made_before(owner: str = "uid-web", **more: Any) -> Json:
    return claim_manifest(KEY.name, owner=owner, extended=True, finalizers=[FINALIZER], **more)


def test_the_claim_has_the_pods_requests_is_owned_by_it_and_is_in_its_status() -> None:
    server = Server()

    version = asyncio.run(create_claim(server, wanted(), WEB))

    claim = server.claims[KEY.name]
    assert version == int(claim["metadata"]["resourceVersion"])
    assert claim["metadata"]["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert claim["metadata"]["finalizers"] == [FINALIZER]
    assert claim["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "uid-web", "controller": True}
    ]
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}
    assert claim["spec"] == {"devices": {"requests": [{"name": "container-0-request-1", "exactly": exactly}]}}
    assert [result["device"] for result in claim["status"]["allocation"]["devices"]["results"]] == [
        "g0",
        "g1",
    ]
    assert claim["status"]["allocation"]["allocationTimestamp"] == "2027-01-15T08:00:00Z"
    assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "web", "uid": "uid-web"}]
    mapping = {"containerName": "main", "resourceName": GPU, "requestName": "container-0-request-1"}
    claim_status = {"resourceClaimName": KEY.name, "requestMappings": [mapping]}
    assert server.told == [
        {"metadata": {"uid": "uid-web"}, "status": {"extendedResourceClaimStatus": claim_status}}
    ]


def test_a_claim_whose_create_response_was_lost_is_found_again() -> None:
    server = Server(made_before())

    asyncio.run(create_claim(server, wanted(), WEB))

    assert list(server.claims) == [KEY.name]
    assert "allocation" in server.claims[KEY.name]["status"]


def test_a_claim_of_another_owner_is_not_used() -> None:
    server = Server(made_before(owner="uid-other"))

    with pytest.raises(ClaimNotReserved, match="is not for pod default/web"):
        asyncio.run(create_claim(server, wanted(), WEB))

    assert "status" not in server.claims[KEY.name]


def test_a_pod_whose_status_is_dropped_is_refused_and_the_reason_names_the_gate() -> None:
    server = Server(drops_pod_status=True)

    with pytest.raises(ClaimNotReserved, match="the feature gate DRAExtendedResource is off"):
        asyncio.run(create_claim(server, wanted(), WEB))


def test_a_claim_is_deleted_with_its_finalizer() -> None:
    server = Server(made_before())

    deleted = asyncio.run(delete_claim(server, DeleteExtendedClaim(KEY, PodUid("uid-web"))))

    assert server.claims == {}
    assert deleted == f"uid-{KEY.name}"


def test_deleting_a_missing_claim_succeeds() -> None:
    assert asyncio.run(delete_claim(Server(), DeleteExtendedClaim(KEY, PodUid("uid-web")))) == ""


class DenyingServer(Server):
    """A webhook denies the deletion of claims, with a status that it chose."""

    async def delete(self, path: str, options: Json) -> None:
        message = 'admission webhook "claims.example.com" denied the request: not found'
        raise status_error(404, "NotFound", message)


def test_a_claim_is_not_gone_because_a_webhook_says_so() -> None:
    """Its devices were allocated to other pods, while pods that are bound already could use the claim."""
    server = DenyingServer(made_before())

    with pytest.raises(AdmissionDenied):
        asyncio.run(delete_claim(server, DeleteExtendedClaim(KEY, PodUid("uid-web"))))


def test_a_claim_with_other_finalizers_is_not_reported_as_deleted() -> None:
    held = made_before()
    held["metadata"]["finalizers"].append("example.com/driver")
    server = Server(held)

    assert asyncio.run(delete_claim(server, DeleteExtendedClaim(KEY, PodUid("uid-web")))) is None

    assert server.claims[KEY.name]["metadata"]["finalizers"] == ["example.com/driver"]


def test_a_claim_of_another_pod_is_not_deleted() -> None:
    server = Server(made_before(owner="uid-other"))

    assert asyncio.run(delete_claim(server, DeleteExtendedClaim(KEY, PodUid("uid-web")))) == ""

    assert list(server.claims) == [KEY.name]


def test_a_claim_with_devices_whose_owner_was_changed_is_not_reported_as_deleted() -> None:
    """Its namespace can change the owner and the annotation, and still use the devices."""
    server = Server(made_before(owner="uid-other", status=given("g0")))

    assert asyncio.run(delete_claim(server, DeleteExtendedClaim(KEY, PodUid("uid-web")))) is None

    assert list(server.claims) == [KEY.name]


def test_the_request_mappings_match_the_requests_of_the_claim() -> None:
    claim = wanted()

    assert {each.request for each in claim.mapped} == {request.name for request in claim.requests}
    assert claim.mapped == (ExtendedResourceMapping("main", GPU, "container-0-request-1"),)
