"""Claims for devices are written to as often as it takes, and never over what others have written."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.pod_claims import PodResourceClaims, choose_devices
from policysched.kube.client.api import Conflict
from policysched.kube.decode import devices
from policysched.kube.decode.large_claims import decode_watched_claim
from policysched.kube.write.resource_claims import (
    CONFLICTS_MAX,
    FINALIZER,
    ClaimNotReserved,
    deallocate_claim,
    reserve_claim,
    unreserve_claim,
)
from policysched.model.devices import ClaimConsumer
from policysched.model.identifiers import PodUid, ResourceClaimKey
from policysched.scheduler.commands import ClaimToReserve, Deallocate
from tests.builders import node
from tests.cluster.test_devices import world
from tests.devices import claim_manifest, device_slice, given, gpu, user

Json = dict[str, Any]
WEB = ClaimConsumer("", "pods", "web", "uid-web")
C = ResourceClaimKey("default", "c")
AT_NS = 1_800_000_000 * 10**9


class Server:
    """One claim, as the API server keeps it. `meanwhile` happens before the next patches, one each."""

    def __init__(self, **claim: Any) -> None:
        self.claim = claim_manifest("c", **claim)
        self.meanwhile: list[Callable[[Server], None]] = []
        self.patches: list[str] = []

    def touch(self, **status: Any) -> None:
        """Somebody else writes."""
        self.claim["status"] = {**self.claim.get("status", {}), **status}
        self._version()

    def _version(self) -> None:
        meta = self.claim["metadata"]
        meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)

    async def settle(self) -> bool:
        return False

    async def patch(self, path: str, body: Json) -> Json:
        if self.meanwhile:
            self.meanwhile.pop(0)(self)
        meta = self.claim["metadata"]
        wanted = body["metadata"]
        if (wanted["uid"], wanted["resourceVersion"]) != (meta["uid"], meta["resourceVersion"]):
            raise Conflict(409, "Conflict", "the object has been modified")
        if path.endswith("/status"):
            assert "finalizers" not in wanted
            status = {**self.claim.get("status", {}), **body["status"]}
            self.claim["status"] = {key: value for key, value in status.items() if value is not None}
        else:
            assert "status" not in body
            meta["finalizers"] = wanted["finalizers"]
        self.patches.append("status" if path.endswith("/status") else "metadata")
        self._version()
        return self.claim

    async def get(self, path: str) -> Json:
        assert path == "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c"
        return self.claim

    @property
    def reserved(self) -> list[str]:
        return [consumer["name"] for consumer in self.claim.get("status", {}).get("reservedFor") or ()]

    @property
    def has(self) -> list[str]:
        allocation = self.claim.get("status", {}).get("allocation")
        return [result["device"] for result in allocation["devices"]["results"]] if allocation else []


def status_of(driver: str) -> Json:
    """What a driver reports of a device."""
    return {"driver": driver, "pool": "a", "device": "g0"}


def wanted(server: Server) -> ClaimToReserve:
    """What is decided on the claim as it stands: g0 of node a, if it has nothing."""
    claim = decode_watched_claim(server.claim)
    stock = AvailableDevices(world(device_slice("a", gpu("g0"), gpu("g1")), claim))
    choice = choose_devices(user("web", "c"), PodResourceClaims((claim,)), node("a"), stock)
    assert not isinstance(choice, str)
    allocation = choice.allocated[0][1] if choice.allocated else None
    return ClaimToReserve(
        C,
        claim.uid,
        claim.version,
        allocation,
        claim.finalizers,
        claim.reserved_for,
        AT_NS,
        claim.allocation,
    )


@pytest.mark.parametrize("others", [64, 65, 20_000])
def test_of_very_many_finalizers_none_is_kept_and_none_is_lost(others: int) -> None:
    names = [f"tenant.example/{number}" for number in range(others)]
    server = Server(finalizers=names)
    what = wanted(server)

    version = written(server, what)

    assert len(what.finalizers or ()) <= 64
    assert server.claim["metadata"]["finalizers"] == [*names, FINALIZER]
    assert (server.has, server.reserved, str(version)) == (
        ["g0"],
        ["web"],
        server.claim["metadata"]["resourceVersion"],
    )


def written(server: Server, what: ClaimToReserve | None = None) -> int:
    return asyncio.run(reserve_claim(server, what or wanted(server), WEB))


def test_the_finalizer_is_written_before_the_allocation_and_the_reservation() -> None:
    server = Server()

    version = written(server)

    assert server.patches == ["metadata", "status"]
    assert server.claim["metadata"]["finalizers"] == [FINALIZER]
    assert (server.has, server.reserved, version) == (["g0"], ["web"], 3)
    assert server.claim["status"]["allocation"] == {
        "allocationTimestamp": "2027-01-15T08:00:00Z",
        "devices": {"results": [{"request": "r", "driver": "gpu.example.com", "pool": "a", "device": "g0"}]},
        "nodeSelector": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
            ]
        },
    }


def test_a_written_allocation_decodes_to_the_decision() -> None:
    server = Server()
    what = wanted(server)

    written(server, what)

    assert devices.decode_resource_claim(server.claim).allocation == what.allocation


def test_an_allocated_claim_is_reserved_in_addition_to_other_pods() -> None:
    server = Server(status=given("g1", reserved=["other"]), finalizers=["theirs", FINALIZER])

    written(server)

    assert server.patches == ["status"]
    assert (server.has, server.reserved) == (["g1"], ["other", "web"])


def test_concurrent_writes_of_others_are_kept() -> None:
    server = Server()
    server.meanwhile = [
        lambda s: s.touch(devices=[status_of("d")]),
        lambda _: None,
        lambda s: s.touch(devices=[status_of("e")]),
    ]

    written(server)

    assert (server.has, server.reserved) == (["g0"], ["web"])
    assert server.claim["status"]["devices"] == [status_of("e")]
    assert server.claim["metadata"]["finalizers"] == [FINALIZER]


def test_a_concurrent_allocation_of_the_same_devices_is_shared() -> None:
    server = Server()
    what = wanted(server)
    server.touch(**given("g0", reserved=["other"]))

    written(server, what)

    assert (server.has, server.reserved) == (["g0"], ["other", "web"])


def test_a_write_whose_response_was_lost_is_found_and_not_repeated() -> None:
    server = Server()
    what = wanted(server)
    written(server, what)
    before = list(server.patches)

    version = written(server, what)

    assert version == devices.decode_resource_claim(server.claim).version
    assert server.patches == before
    assert server.reserved == ["web"]


@pytest.mark.parametrize(
    ("happens", "words"),
    [
        (lambda s: s.touch(**given("g1")), "got allocated elsewhere in the meantime"),
        (lambda s: s.claim["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z", resourceVersion="9"),
         "got deleted in the meantime"),
        (lambda s: s.claim["metadata"].update(uid="another", resourceVersion="9"), "got deleted in the meantime"),
    ],
    ids=["other devices", "ending", "another claim"],
)  # fmt: skip
def test_a_stale_decision_is_not_written(happens: Callable[[Server], None], words: str) -> None:
    server = Server()
    what = wanted(server)
    happens(server)

    with pytest.raises(ClaimNotReserved, match=words):
        written(server, what)
    assert "web" not in server.reserved


def test_a_deallocated_claim_is_not_reserved() -> None:
    server = Server(status=given("g0"))
    what = wanted(server)
    server.touch(allocation=None)

    with pytest.raises(ClaimNotReserved, match="got deallocated elsewhere in the meantime"):
        written(server, what)


def test_a_claim_with_other_devices_is_not_reserved() -> None:
    server = Server(status=given("g0"))
    what = wanted(server)
    server.touch(allocation=given("g0", node="b")["allocation"])

    with pytest.raises(ClaimNotReserved, match="got allocated elsewhere in the meantime"):
        written(server, what)

    assert server.reserved == []


def test_a_claim_that_keeps_changing_is_given_up() -> None:
    server = Server()
    server.meanwhile = [lambda s: s.touch(devices=[])] * (3 * CONFLICTS_MAX)

    with pytest.raises(ClaimNotReserved, match="conflicted 5 times in a row"):
        written(server)


def test_only_the_pods_own_reservation_is_removed() -> None:
    server = Server(status=given("g0", reserved=["other", "web"]))
    server.meanwhile = [lambda s: s.touch(devices=[])]

    asyncio.run(unreserve_claim(server, C, "uid-c", PodUid("uid-web")))
    asyncio.run(unreserve_claim(server, C, "uid-c", PodUid("uid-web")))

    assert (server.has, server.reserved) == (["g0"], ["other"])
    assert server.patches == ["status"]


def test_devices_are_deallocated_only_in_the_version_that_was_read() -> None:
    server = Server(version=7, status=given("g0"))

    asyncio.run(deallocate_claim(server, Deallocate(C, "uid-c", 7)))
    emptied = list(server.has)
    server.touch(**given("g1"))

    assert emptied == []
    with pytest.raises(Conflict):
        asyncio.run(deallocate_claim(server, Deallocate(C, "uid-c", 8)))
    assert server.has == ["g1"]
