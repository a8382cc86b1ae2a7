"""Large objects are decoded beside the event loop, and what the reflector emits is as true as without it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysched.evaluate.decision_cost import DECISION_BUDGET_DEFAULT
from policysched.kube.client import watch_lines
from policysched.kube.client.watch_lines import WatchEvent, watch_events
from policysched.kube.decode import rests
from policysched.kube.decode.counted_names import CountedNames
from policysched.kube.watch import large_objects, reflector
from policysched.kube.watch.known_objects import KnownObjects
from policysched.kube.watch.large_objects import LargeObjects, is_large
from policysched.kube.watch.resources import PODS, pods_within
from policysched.model.identifiers import PodUid
from policysched.scheduler.events import PodDeleted
from tests.builders import pod_manifest
from tests.hostile import HOSTILE_SPECS
from tests.kube.test_reflector import STORMY, ReflectorHarness, names, truth
from tests.kube.world import Script, World, event, listed, on_virtual_time, running, until, versioned

Json = dict[str, Any]
LARGE = {"example.com/large": "x" * large_objects.LARGE_LINE_BYTES}


def large(name: str, version: int, **more: Any) -> Json:
    return versioned(pod_manifest(name, annotations=LARGE, **more), version)


def large_spec(name: str, version: int, node: str = "a") -> Json:
    """What makes a pod of a list large. The first list waits for one with a node."""
    tolerations = [f"key-{number}" for number in range(2_000)]
    obj = versioned(pod_manifest(name, tolerations=tolerations), version)
    obj["spec"]["nodeName"] = node
    return obj


def small(name: str, version: int, **more: Any) -> Json:
    return versioned(pod_manifest(name, **more), version)


class Beside:
    """Functions run when `release` is called, or after a delay."""

    def __init__(self, delay_s: Callable[[], float] | None = None) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        self._delay_s = delay_s

    async def __call__(self, function: Callable[[], Any], /) -> Any:
        if self._delay_s is not None:
            await asyncio.sleep(self._delay_s())
        else:
            self.waiting.append(asyncio.get_running_loop().create_future())
            await self.waiting[-1]
        return function()

    async def release(self) -> None:
        await until(lambda: self.waiting, "an object to decode")
        self.waiting.pop(0).set_result(None)
        await asyncio.sleep(0.05)


async def no_read(*_: Any) -> None:
    pass


def put_without_order(objects: LargeObjects, key: str, _version: int, *more: Any) -> None:
    PUT(objects, key, 10**9, *more)


PUT = LargeObjects.put


@pytest.fixture
def every_object_of_a_watch_is_large() -> Iterator[None]:
    with patch.object(reflector, "LARGE_LINE_BYTES", 0):
        yield


@pytest.fixture(params=[2**40, 0], ids=["watch", "lists too"])
def every_object_is_large(
    request: pytest.FixtureRequest, every_object_of_a_watch_is_large: None
) -> Iterator[None]:
    with patch.object(large_objects, "LARGE_LINE_BYTES", request.param):
        yield


@pytest.mark.usefixtures("every_object_is_large")
@pytest.mark.parametrize("seed", range(6))
def test_over_a_faulty_transport_the_reflector_converges_to_the_server(seed: int) -> None:
    on_virtual_time(lambda: churn(seed))


@pytest.mark.usefixtures("every_object_of_a_watch_is_large")
@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(patch.object(LargeObjects, "clear", lambda _: None), id="a list ends nothing"),
        pytest.param(patch.object(KnownObjects, "is_newer", lambda *_: True), id="no comparison"),
    ],
)
def test_planted_order_bug_is_detected(planted: Any) -> None:
    with planted, pytest.raises((AssertionError, KeyError)):
        for seed in range(12):
            on_virtual_time(lambda seed=seed: churn(seed))


@pytest.mark.usefixtures("every_object_is_large")
@pytest.mark.parametrize("seed", range(6))
def test_objects_whose_lines_were_dropped_converge_to_the_server(seed: int) -> None:
    with patch.object(large_objects, "WAITING_BYTES_MAX", 2_000):
        on_virtual_time(lambda: churn(seed))


@pytest.mark.usefixtures("every_object_of_a_watch_is_large")
@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(patch.object(reflector.Reflector, "_read_again", no_read), id="never read"),
        pytest.param(patch.object(LargeObjects, "put", put_without_order), id="an older version is put"),
        pytest.param(patch.object(LargeObjects, "discard", lambda *_: None), id="deletions discard nothing"),
    ],
)
def test_planted_bug_of_dropped_lines_is_detected(planted: Any) -> None:
    with planted, patch.object(large_objects, "WAITING_BYTES_MAX", 2_000), pytest.raises(AssertionError):
        for seed in range(12):
            on_virtual_time(lambda seed=seed: churn(seed))


async def churn(seed: int) -> None:
    """Pods of three namespaces come, change and go over a faulty transport; each takes up to two seconds to decode."""
    world, dice = World(history_changes_max=30), Random(seed)
    harness = ReflectorHarness(
        world.transport(STORMY, seed),
        run_beside=Beside(lambda: dice.random() * 2),
        page_size=4,
        watch_min_s=1,
        watch_max_s=3,
        page_timeout_s=1,
    )
    for namespace in "abc":
        world.local.create("namespaces", "", {"metadata": {"name": namespace}})
    async with running(harness.reflector.run()):
        for number in range(120):
            alive = list(world.local.list("pods"))
            match dice.randrange(3) if alive else 0:
                case 0:
                    world.add_pod(f"p{number}", namespace="abc"[number % 3])
                case 1:
                    world.local.delete("pods", dice.choice(alive), grace_period_s=0)
                case _:
                    world.local.update("pods", dice.choice(alive), partial(labelled, number))
            await asyncio.sleep(dice.random() * 0.2)
        await until(
            lambda: harness.state() == truth(world) and labels(harness) == true_labels(world), "the truth"
        )


def labelled(number: int, obj: Json) -> Json:
    return {**obj, "metadata": {**obj["metadata"], "labels": {"n": str(number)}}}


def labels(harness: ReflectorHarness) -> dict[str, Any]:
    latest = {e.pod.pod.uid: dict(e.pod.pod.labels) for e in harness.events if not isinstance(e, PodDeleted)}
    return {uid: latest[PodUid(uid)] for uid in harness.state()}


def true_labels(world: World) -> dict[str, Any]:
    return {pod["metadata"]["uid"]: pod["metadata"].get("labels") or {} for pod in world.local.list("pods")}


def test_objects_behind_a_large_one_do_not_wait_for_it() -> None:
    async def scenario() -> None:
        beside = Beside()
        transport = Script(
            [listed(10)],
            [[event("ADDED", large("large", 11)), event("ADDED", small("small", 12))], []],
        )
        harness = ReflectorHarness(transport, run_beside=beside)
        async with running(harness.reflector.run()):
            await until(lambda: harness.events, "the small pod")
            assert names(harness.events) == ["+small"]
            await beside.release()

        assert names(harness.events) == ["+small", "+large"]

    on_virtual_time(scenario)


@pytest.mark.parametrize(
    "repeated",
    [event("MODIFIED", small("pod", 11)), event("DELETED", small("pod", 9))],
    ids=["changed", "deleted"],
)
def test_an_event_that_is_repeated_does_not_take_the_place_of_a_newer_one(repeated: Json) -> None:
    async def scenario() -> None:
        beside = Beside()
        begun = [event("ADDED", large("other", 10)), event("ADDED", large("pod", 12))]
        harness = ReflectorHarness(Script([listed(8)], [[*begun, repeated], []]), run_beside=beside)
        async with running(harness.reflector.run()):
            await beside.release()
            await beside.release()

        assert names(harness.events)[-1] == "+pod"
        assert len(beside.waiting) == 0

    on_virtual_time(scenario)


def test_of_an_object_that_changes_all_the_time_the_newest_version_is_decoded_next() -> None:
    async def scenario() -> None:
        beside = Beside()
        changes = [event("MODIFIED", large("pod", version)) for version in range(11, 20)]
        harness = ReflectorHarness(Script([listed(10)], [changes, []]), run_beside=beside)
        async with running(harness.reflector.run()):
            await beside.release()  # the first, and all others arrived meanwhile
            await beside.release()
            await asyncio.sleep(1)

        assert not beside.waiting, "no version in between is decoded"
        assert [update.pod.version for update in harness.events] == ["11", "19"]

    on_virtual_time(scenario)


@pytest.mark.parametrize("small_version", [True, False])
def test_a_later_event_ends_what_is_decoded(small_version: bool) -> None:
    """Also the deletion of an object that consumers have not seen yet."""

    async def scenario() -> None:
        beside = Beside()
        later = event("MODIFIED", small("pod", 12)) if small_version else event("DELETED", large("pod", 12))
        harness = ReflectorHarness(
            Script([listed(10)], [[event("ADDED", large("pod", 11)), later], []]), run_beside=beside
        )
        async with running(harness.reflector.run()):
            await beside.release()
            await asyncio.sleep(1)

        assert [update.pod.version for update in harness.events] == (["12"] if small_version else [])

    on_virtual_time(scenario)


def test_what_is_decoded_while_a_list_removes_it_is_not_emitted() -> None:
    async def scenario() -> None:
        beside = Beside()
        expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        transport = Script(
            [listed(10), listed(20)], [[event("ADDED", large("pod", 11)), event("ERROR", expired)], []]
        )
        harness = ReflectorHarness(transport, run_beside=beside)
        async with running(harness.reflector.run()):
            await until(lambda: harness.listed == 2, "the second list")
            await beside.release()
            await asyncio.sleep(1)

        assert not harness.events

    on_virtual_time(scenario)


def test_a_malformed_large_object_is_reported_once() -> None:
    async def scenario() -> None:
        broken = large("pod", 11)
        broken["spec"]["tolerations"] = "none"
        harness = ReflectorHarness(
            Script([listed(10)], [[event("ADDED", broken)], []]), run_beside=Beside(lambda: 0.0)
        )
        async with running(harness.reflector.run()):
            await until(lambda: harness.malformed, "the report")
            await asyncio.sleep(5)

        assert [malformed.name for malformed in harness.malformed] == ["default/pod"]

    on_virtual_time(scenario)


def test_a_list_is_complete_when_its_large_pods_are_decoded() -> None:
    async def scenario() -> None:
        beside = Beside()
        transport = Script([listed(12, large_spec("large", 11), small("small", 12))], [[], []])
        harness = ReflectorHarness(transport, run_beside=beside)
        async with running(harness.reflector.run()):
            await until(lambda: beside.waiting, "the large pod")
            assert (harness.listed, names(harness.events)) == (0, [])
            await beside.release()

        assert (harness.listed, names(harness.events)) == (1, ["+large", "+small"])

    on_virtual_time(scenario)


def test_an_object_of_a_list_with_hundreds_of_levels_is_large() -> None:
    parameters: dict[str, object] = {}
    for _ in range(500):
        parameters = {"inner": parameters}

    assert is_large({"spec": parameters})
    assert not is_large({"spec": {"parameters": {}}})


EXPIRED = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}


def test_events_after_a_later_list_do_not_wait_for_its_large_pods() -> None:
    """Which somebody changes all the time."""

    async def scenario() -> None:
        beside = Beside()
        transport = Script(
            [listed(10), listed(20, large_spec("large", 15), small("small", 12))],
            [[event("ERROR", EXPIRED)], [event("ADDED", small("later", 21))], []],
        )
        harness = ReflectorHarness(transport, run_beside=beside)
        async with running(harness.reflector.run()):
            await until(lambda: beside.waiting, "the large pod")
            await asyncio.sleep(5)
            assert (harness.listed, names(harness.events)) == (2, ["+small", "+later"])
            await beside.release()

        assert names(harness.events) == ["+small", "+later", "+large"]

    on_virtual_time(scenario)


def test_large_pods_of_the_first_list_are_decoded_without_rests() -> None:
    """Nothing is decided before."""
    rested: dict[str, bool] = {}
    decode_update = PODS.decode_update
    assert decode_update is not None

    def decode(obj: Json, before: object) -> Any:
        rested[obj["metadata"]["name"]] = rests._THREAD.rests
        return decode_update(obj, before)

    async def scenario() -> None:
        transport = Script(
            [listed(10, large_spec("first", 9)), listed(20, large_spec("second", 19))],
            [[event("ERROR", EXPIRED)], []],
        )
        resource = replace(
            PODS, decode_update=decode, decode_line=lambda line, _: decode(orjson.loads(line)["object"], None)
        )
        harness = ReflectorHarness(transport, resource, run_beside=Beside(lambda: 0.0))
        async with running(harness.reflector.run()):
            await until(lambda: "+second" in names(harness.events), "both")

    on_virtual_time(scenario)
    assert rested == {"first": False, "second": True}


def test_a_large_pod_of_a_list_from_a_server_that_is_behind_replaces_one_that_is_being_decoded() -> None:
    """The list is authoritative."""

    async def scenario() -> None:
        beside = Beside()
        transport = Script(
            [listed(9), listed(10, large_spec("pod", 10, node=""))],
            [[event("ADDED", large("pod", 12)), event("ERROR", EXPIRED)], []],
        )
        harness = ReflectorHarness(transport, run_beside=beside)
        async with running(harness.reflector.run()):
            await until(lambda: harness.listed == 2, "the second list")
            await beside.release()
            await beside.release()

        assert [update.pod.version for update in harness.events] == ["10"]

    on_virtual_time(scenario)


@pytest.mark.parametrize("is_listed", [False, True], ids=["watch", "list"])
def test_the_event_loop_runs_while_a_large_pod_is_decoded(is_listed: bool) -> None:
    """On a real thread. The decoder waits until the event loop has run."""
    has_run, decode_update = threading.Event(), PODS.decode_update
    assert decode_update is not None

    def decode(obj: Json, before: object) -> Any:
        if obj["metadata"]["name"] == "large":
            assert has_run.wait(30), "the event loop waits for the decoder"
        return decode_update(obj, before)

    async def scenario() -> None:
        pods = small("small", 12), large_spec("large", 11)
        transport = (
            Script([listed(12, *pods)], [[], []])
            if is_listed
            else Script([listed(10)], [[event("ADDED", pod) for pod in reversed(pods)], []])
        )
        resource = replace(PODS, decode_update=decode)
        harness = ReflectorHarness(transport, resource, run_beside=asyncio.to_thread)
        async with running(harness.reflector.run()):
            while not harness.events:
                await asyncio.sleep(0.001)
            has_run.set()
            while len(harness.events) < 2:
                await asyncio.sleep(0.001)
        assert names(harness.events) == ["+small", "+large"]

    asyncio.run(scenario())


# ── the begin of a large line ───────────────────────────────────────────────────────────────────────────────────────


def go_line(kind: str, obj: Json) -> bytes:
    """As the API server writes it: kind, apiVersion and metadata first, of these what identifies the object."""
    first = {name: obj[name] for name in ("kind", "apiVersion", "metadata")}
    meta = obj["metadata"]
    keys = [name for name in ("name", "generateName", "namespace", "uid", "resourceVersion") if name in meta]
    first["metadata"] = {**{name: meta[name] for name in keys}, **meta}
    return orjson.dumps(
        {"type": kind, "object": {**first, **{k: v for k, v in obj.items() if k not in first}}}
    )


def read_lines(*lines: bytes) -> list[WatchEvent]:
    async def chunks() -> AsyncIterator[bytes]:
        for line in lines:
            yield line + b"\n"

    async def scenario() -> list[WatchEvent]:
        return [event async for event in watch_events(chunks(), 60.0, large_bytes=0)]

    return asyncio.run(scenario())


def test_of_a_line_of_the_api_server_the_begin_alone_is_read() -> None:
    line = go_line("MODIFIED", large("pod", 11))[:200]  # the end is not even looked at
    with patch.object(watch_lines.orjson, "loads", side_effect=AssertionError("the line is parsed")):
        (read,) = read_lines(line)

    assert (read.type, read.object["metadata"]["uid"], read.large) == ("MODIFIED", "uid-default-pod", line)


IDENTITY = ("name", "namespace", "uid", "resourceVersion")
TRICKY = st.sampled_from(
    ['"metadata":{"uid":"other"}', "}}", '\\"', "é", "\U0001f600", '{"type":"ADDED"', ""]
)


@given(
    TRICKY,
    TRICKY,
    st.booleans(),
    st.booleans(),
    st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]),
)
def test_the_identity_is_that_of_the_whole_line(
    text: str, other: str, in_order: bool, generated: bool, kind: str
) -> None:
    obj = small("pod", 11, annotations={"a": text, other: "b"}, labels={"c": other})
    if generated:
        obj["metadata"]["generateName"] = f"{text}po"
    obj["kind"], obj["apiVersion"] = "Pod", "v1"
    line = go_line(kind, obj) if in_order else orjson.dumps({"object": obj, "type": kind})

    (read,) = read_lines(line)

    assert read.type == kind
    metadata = orjson.loads(line)["object"]["metadata"]
    assert {name: read.object["metadata"].get(name) for name in IDENTITY} == {
        name: metadata.get(name) for name in IDENTITY
    }


def test_long_annotations_and_managed_fields_are_not_parsed() -> None:
    """With a field for each of 5,000 ports they are longer than the spec."""
    obj = small("pod", 11, annotations={"a": "x" * 200_000})
    obj["metadata"]["managedFields"] = [{"fieldsV1": {f"f:{number}": {} for number in range(5_000)}}]
    line = go_line("ADDED", {"kind": "Pod", "apiVersion": "v1", **obj})
    with patch.object(watch_lines.orjson, "loads", side_effect=AssertionError("the line is parsed")):
        (read,) = read_lines(line)

    assert read.object["metadata"]["uid"] == obj["metadata"]["uid"]


def test_a_large_line_that_is_no_json_is_a_malformed_object() -> None:
    async def scenario() -> None:
        line = go_line("ADDED", {"kind": "Pod", "apiVersion": "v1", **large("pod", 11)})[:-2] + b"!}"
        harness = ReflectorHarness(Script([listed(10)], [[line + b"\n"], []]), run_beside=Beside(lambda: 0.0))
        async with running(harness.reflector.run()):
            await until(lambda: harness.malformed, "the report")

        assert "not JSON" in harness.malformed[0].reason
        assert harness.listed == 1

    on_virtual_time(scenario)


GPU = "vendor.example/gpu"


def beside_many_resources(name: str, version: int) -> Json:
    """A pod on a node that names a resource beside thousands of others, and last."""
    requests = {**HOSTILE_SPECS["resources"](2_500)["containers"][0]["resources"]["requests"], GPU: "7"}
    spec = {"containers": [{"name": "c", "image": "app:1", "resources": {"requests": requests}}]}
    return versioned(pod_manifest(name, spec={**spec, "nodeName": "a"}), version)


def gpus(events: list[Any]) -> list[int]:
    return [change.pod.pod.requests.get(GPU, 0) for change in events]


@pytest.mark.parametrize("answer_version", [11, 12])
def test_a_large_pod_is_read_again_when_a_node_first_has_a_resource(answer_version: int) -> None:
    async def scenario() -> None:
        names = CountedNames()
        transport = Script(
            [
                listed(12, beside_many_resources("large", 11), small("small", 12)),
                (500, {"kind": "Status", "code": 500}),
                listed(13, beside_many_resources("large", answer_version)),
            ],
            [[]],
        )
        pods = pods_within(DECISION_BUDGET_DEFAULT, names)
        harness = ReflectorHarness(transport, pods, run_beside=Beside(lambda: 0.0))
        async with running(harness.reflector.run()):
            await until(lambda: len(harness.events) == 2, "the list")
            await asyncio.sleep(60)
            assert len(transport.requests) == 1
            names.count_node("n", (GPU,))
            await until(lambda: len(harness.events) == 3, "the large pod")
            await asyncio.sleep(60)

        assert gpus(harness.events) == [0, 0, 7]
        selected = "metadata.namespace=default,metadata.name=large"
        assert [request.params.get("fieldSelector") for request in transport.requests] == [
            None,
            selected,
            selected,
        ]

    on_virtual_time(scenario)


@pytest.mark.parametrize("answer", [[], ["older"], ["another"]])
def test_a_large_pod_that_the_answer_does_not_have_is_left_as_it_is(answer: list[str]) -> None:
    async def scenario() -> None:
        names = CountedNames()
        older = beside_many_resources("large", 9)
        another = versioned(pod_manifest("large", uid="another"), 13)
        items = [{"older": older, "another": another}[name] for name in answer]
        transport = Script([listed(12, beside_many_resources("large", 11)), listed(13, *items)], [[]])
        pods = pods_within(DECISION_BUDGET_DEFAULT, names)
        harness = ReflectorHarness(transport, pods, run_beside=Beside(lambda: 0.0))
        async with running(harness.reflector.run()):
            await until(lambda: bool(harness.events), "the list")
            names.count_node("n", (GPU,))
            await asyncio.sleep(60)

        assert gpus(harness.events) == [0]

    on_virtual_time(scenario)


def test_a_large_pod_that_was_decoded_while_a_node_got_a_resource_is_read_again() -> None:
    async def scenario() -> None:
        names, decoded, stored = CountedNames(), asyncio.Event(), asyncio.Event()

        async def beside(function: Callable[[], Any], /) -> Any:
            result = function()
            decoded.set()
            await stored.wait()
            return result

        update = event("ADDED", beside_many_resources("large", 11))
        transport = Script([listed(10), listed(11, beside_many_resources("large", 11))], [[update], []])
        pods = pods_within(DECISION_BUDGET_DEFAULT, names)
        harness = ReflectorHarness(transport, pods, run_beside=beside)
        async with running(harness.reflector.run()):
            await decoded.wait()
            names.count_node("n", (GPU,))
            await asyncio.sleep(60)  # all are visited, and this one is not known yet
            stored.set()
            await until(lambda: len(harness.events) == 2, "the large pod once more")

        assert gpus(harness.events) == [0, 7]

    on_virtual_time(scenario)


@pytest.mark.parametrize(
    ("node", "phase", "nominated", "is_waited_for"),
    [
        ("a", "Running", "", True),
        ("", "Pending", "a", True),
        ("", "Pending", "", False),
        ("a", "Failed", "", False),
        ("", "Succeeded", "a", False),
    ],
)
def test_the_first_list_waits_for_large_pods_that_count_for_others(
    node: str, phase: str, nominated: str, is_waited_for: bool
) -> None:
    """Whoever takes over would decide nothing meanwhile."""

    async def scenario() -> None:
        obj, beside = large_spec("large", 11, node), Beside()
        obj["status"] = {"phase": phase, "nominatedNodeName": nominated}
        harness = ReflectorHarness(Script([listed(12, obj, small("small", 12))], [[]]), run_beside=beside)
        async with running(harness.reflector.run()):
            await asyncio.sleep(5)
            assert (harness.listed == 0) == is_waited_for
            await beside.release()
            await until(lambda: "+large" in names(harness.events) and harness.listed == 1, "both")

    on_virtual_time(scenario)


def test_large_pods_of_the_first_list_wait_for_the_nodes() -> None:
    async def scenario() -> None:
        names, nodes_listed = CountedNames(), asyncio.Event()
        transport = Script([listed(12, beside_many_resources("large", 11))], [[]])
        pods = pods_within(DECISION_BUDGET_DEFAULT, names)
        harness = ReflectorHarness(transport, pods, run_beside=Beside(lambda: 0.0), before_large=nodes_listed)
        async with running(harness.reflector.run()):
            await asyncio.sleep(5)
            assert (harness.listed, harness.events) == (0, [])
            names.count_node("n", (GPU,))
            nodes_listed.set()
            await until(lambda: bool(harness.listed), "the list")

        assert gpus(harness.events) == [7]

    on_virtual_time(scenario)
