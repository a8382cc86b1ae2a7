"""What is read of the API server's answers to writes: the beginning of the metadata, as the object may have a megabyte."""

import asyncio
from random import Random

import orjson
import pytest

from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.large_metadata import large_metadata, metadata_list
from policysched.kube.client.transport import METADATA_LIST_ONLY, METADATA_ONLY, ApiRequest, ApiResponse
from policysched.kube.write.pod_group_status import PodGroupStatusWrite
from policysched.kube.write.report_content import EventContent, EventObject, PodScheduledCondition
from policysched.model.identifiers import NodeName, PodUid, ResourceClaimKey, VolumeClaimKey
from policysched.model.pod_groups import PodGroupKey, PodGroupStatus
from policysched.scheduler.commands import (
    ClaimToReserve,
    ClearNomination,
    Evict,
    Prebind,
    Victim,
    VolumeToBind,
    VolumeToProvision,
)
from tests.kube.world import Script, on_virtual_time, running, writers


def test_no_write_of_a_status_has_the_object_answered() -> None:
    """Each victim, preemptor and PodGroup was parsed on the main loop, up to 13 ms for a megabyte."""

    async def scenario() -> None:
        script, random, connectivity = Script([(200, {})]), Random(1), Connectivity(lambda: 0.0)
        api = ApiClient(script)
        claims, evictor, reporter = writers(api, random, connectivity)
        async with running(claims.run(), evictor.run(), reporter.run()):
            uid, node = PodUid("u"), NodeName("a")
            claims.put(Prebind(uid, "ns", "claims", node, (), (), nominate=True))
            evictor.put(Evict(uid, "ns", "high", "p", node, (Victim(PodUid("v"), "ns", "victim"),)))
            evictor.put(ClearNomination(uid, "ns", "cleared"))
            reporter.set_condition(PodScheduledCondition("ns", "pending", "p", "Unschedulable", "no"))
            for number, kind in enumerate(("scheduling.k8s.io", "scheduling.x-k8s.io")):
                key = PodGroupKey(kind, "ns", f"group-{number}")  # type: ignore[arg-type]
                reporter.set_condition(PodGroupStatusWrite(key, f"g{number}", "v1", PodGroupStatus()))
            await asyncio.sleep(10)
        patches = {
            request.path.split("/")[-2]: request.accept
            for request in script.requests
            if request.method == "PATCH"
        }
        names = {"claims", "high", "victim", "cleared", "pending", "group-0", "group-1"}
        assert patches == dict.fromkeys(names, METADATA_ONLY)

    on_virtual_time(scenario)


def test_no_write_of_a_claim_a_volume_or_an_event_has_the_object_answered() -> None:
    async def scenario() -> None:
        script, random, connectivity = Script([(200, {})]), Random(1), Connectivity(lambda: 0.0)
        claims, _, reporter = writers(ApiClient(script), random, connectivity)
        async with running(claims.run(), reporter.run()):
            data = VolumeClaimKey("ns", "data")
            volumes = (VolumeToBind("volume", "v", 1, data, "c", True),)
            provisioned = (VolumeToProvision(data, "c", 1),)
            devices = ClaimToReserve(ResourceClaimKey("ns", "devices"), "d", 1, None, (), (), 0)
            claims.put(Prebind(PodUid("u"), "ns", "web", NodeName("a"), volumes, provisioned, (devices,)))
            content = EventContent(EventObject("Pod", "ns", "web", "u"), "Normal", "R", "A", "note", "test")
            for _ in range(2):
                reporter.record_event(content)
                await asyncio.sleep(100)
        patches = {
            request.path.split("/")[-1].partition(".")[0]: request.accept
            for request in script.requests
            if request.method == "PATCH"
        }
        assert patches == dict.fromkeys(("volume", "data", "status", "web"), METADATA_ONLY)

    on_virtual_time(scenario)


METADATA = (
    b'{"name":"web-1","generateName":"web-","namespace":"ns","uid":"u","resourceVersion":"7","generation":3,'
)
NOT_PARSED = b'"creationTimestamp":"2026-01-01T00:00:00Z","ownerReferences":[' + b"x" * 40_000
OBJECT = b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":' + METADATA + NOT_PARSED
LIST = (
    b'{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"9"},'
    b'"items":[{"metadata":' + METADATA + NOT_PARSED
)


class Large:
    """Answers with this body."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def request(self, _: ApiRequest) -> ApiResponse:
        return ApiResponse(200, self.body)


@pytest.mark.parametrize(("body", "accept"), [(OBJECT, METADATA_ONLY), (LIST, METADATA_LIST_ONLY)])
def test_of_a_megabyte_of_metadata_the_identity_alone_is_read(body: bytes, accept: str) -> None:
    """25,000 owners, or managed fields of as many bytes, took 9 to 13 ms of the main loop for each condition of a pod. What follows
    the identity here is no JSON."""
    api = ApiClient(Large(body))  # type: ignore[arg-type]
    read = asyncio.run(api.get("/api/v1/namespaces/ns/pods/web-1", accept=accept))
    identity = {"metadata": {"uid": "u", "resourceVersion": "7", "generation": 3}}
    assert read == (identity if accept == METADATA_ONLY else {"items": [identity]})


def test_a_uid_that_is_no_utf8_is_read_as_another_one() -> None:
    """Only something between could write it."""
    assert large_metadata(OBJECT.replace(b'"uid":"u"', b'"uid":"\xff"')) == {
        "metadata": {"uid": "\ufffd", "resourceVersion": "7", "generation": 3}
    }


def test_other_answers_are_parsed_whole() -> None:
    """Small ones, objects that the server did not reduce, and empty lists."""
    whole = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "web", "uid": "u"}, "spec": "x" * 40_000}
    empty = {"kind": "PartialObjectMetadataList", "items": [], "metadata": {"continue": "x" * 40_000}}
    for answer in (orjson.dumps(whole), orjson.dumps(empty), OBJECT[:200]):
        assert large_metadata(answer) is None


ITEM = (
    b'{"metadata":{"name":"%d","namespace":"ns","uid":"u%d","resourceVersion":"%d","labels":{"metadata":"{"},'
    b'"annotations":{"a":"\\"metadata\\":{\\"name\\":\\"b\\",\\"uid\\":\\"c\\",\\"resourceVersion\\":\\"1\\"}"},'
    b'"managedFields":[{"fieldsV1":{"f:metadata":{"f:name":{}}}}]}}'
)
LIST_BEGIN = b'{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"9","continue":"abc"},"items":['


def test_of_a_list_of_metadata_only_what_identifies_the_objects_is_read() -> None:
    items = b",".join(ITEM % (number, number, number) for number in range(3))
    for end in (b"]}", b"]}\n"):
        read = metadata_list(LIST_BEGIN + items + end)
        assert read is not None
        assert read["metadata"] == {"resourceVersion": "9", "continue": "abc"}
        assert read["items"] == [
            {"metadata": {"name": f"{n}", "namespace": "ns", "uid": f"u{n}", "resourceVersion": f"{n}"}}
            for n in range(3)
        ]
        whole = orjson.loads(LIST_BEGIN + items + end)["items"]
        assert [obj["metadata"]["uid"] for obj in whole] == [obj["metadata"]["uid"] for obj in read["items"]]
    assert metadata_list(LIST_BEGIN + b"]}") == {
        **orjson.loads(LIST_BEGIN + b"]}"),
        "items": [],
    }


def test_a_list_that_is_written_otherwise_is_parsed() -> None:
    other_order = ITEM.replace(
        b'"name":"%d","namespace":"ns","uid":"u%d"', b'"name":"%d","uid":"u%d","namespace":"ns"'
    )
    for body in (
        LIST_BEGIN + other_order % (1, 1, 1) + b"]}",
        LIST_BEGIN + b'{"metadata": {"name": "spaces"}}' + b"]}",
        b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":['
        + ITEM % (1, 1, 1)
        + b"]}",
    ):
        assert metadata_list(body) is None
