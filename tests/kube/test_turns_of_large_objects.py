"""Large objects of one namespace delay those of no other, however many there are."""

import asyncio
import itertools
from typing import Any
from unittest.mock import patch

import pytest

from policysched.kube.client.transport import ApiRequest, ApiResponse
from policysched.kube.watch import large_objects
from policysched.kube.watch.large_objects import LargeObjects
from tests.kube.test_large_objects import LARGE, Beside, large, small
from tests.kube.test_reflector import ReflectorHarness, names
from tests.kube.world import Script, event, listed, no_answer, on_virtual_time, running, until

KIB = 1024


def put(objects: LargeObjects, namespace: str, name: str, length: int, version: int = 1) -> None:
    metadata = {"namespace": namespace, "name": name}
    objects.put(f"{namespace}/{name}", version, metadata, b"x" * length)


async def take(objects: LargeObjects, count: int) -> list[str]:
    return [(await objects.take()).key for _ in range(count)]


def test_namespaces_take_turns() -> None:
    async def scenario() -> None:
        objects = LargeObjects()
        for number in range(40):
            put(objects, "tenant", f"{number}", 600 * KIB)
        put(objects, "friend", "web", 40 * KIB)
        put(objects, "other", "web", 40 * KIB)
        assert await take(objects, 4) == ["friend/web", "other/web", "tenant/0", "tenant/1"]

    asyncio.run(scenario())


def test_namespaces_have_as_many_bytes_whatever_the_number_of_objects() -> None:
    async def scenario() -> None:
        objects = LargeObjects()
        for number in range(40):
            put(objects, "tenant", f"{number}", 600 * KIB)
            put(objects, "friend", f"{number}", 40 * KIB)
        taken = await take(objects, 32)
        assert [key for key in taken if "tenant" in key] == ["tenant/0", "tenant/1"]

    asyncio.run(scenario())


@pytest.mark.parametrize("taken_before", [0, 1, 30, 200])
def test_a_small_object_passes_one_of_each_of_many_namespaces(taken_before: int) -> None:
    """They may be of one tenant, who changes each of them again."""

    async def scenario() -> None:
        objects = LargeObjects()
        for number in range(100):
            put(objects, f"tenant{number}", "0", 600 * KIB)
        for _ in range(taken_before):
            taken = await objects.take()
            put(objects, taken.namespace, "0", 600 * KIB, version=taken.version + 1)
        put(objects, "friend", "web", 32 * KIB)
        assert await take(objects, 1) == ["friend/web"]

    asyncio.run(scenario())


def test_new_namespaces_without_end_pass_a_large_object_only_for_a_time() -> None:
    async def scenario() -> None:
        objects, decoded, new = LargeObjects(), 0, list[int]()
        put(objects, "friend", "web", 600 * KIB)
        for number in itertools.count():
            put(objects, f"tenant{2 * number}", "0", 40 * KIB, version=decoded + 1)
            put(objects, f"tenant{2 * number + 1}", "0", 40 * KIB, version=decoded + 1)
            taken = await objects.take()
            if taken.namespace == "friend":
                break
            decoded += len(taken.line)
            new.append(taken.version)
        assert max(new) <= 8 * 600 * KIB

    with patch.object(large_objects, "PASSING_NAMESPACES_MAX", 8):
        asyncio.run(scenario())


def test_a_namespace_that_comes_back_waits_for_its_turn() -> None:
    """Otherwise one that always has a single object would always be the next."""

    async def scenario() -> None:
        objects = LargeObjects()
        for number in range(3):
            put(objects, "tenant", f"{number}", 600 * KIB)
            put(objects, "friend", f"{number}", 600 * KIB)
            assert len(await take(objects, 1)) == 1
        taken = await take(objects, 3)
        assert {key.partition("/")[0] for key in taken} == {"tenant", "friend"}

    asyncio.run(scenario())


def test_the_namespace_with_the_most_bytes_loses_its_newest_lines() -> None:
    async def scenario() -> None:
        objects = LargeObjects()
        with patch.object(large_objects, "WAITING_BYTES_MAX", 1000 * KIB):
            for number in range(4):
                put(objects, "tenant", f"{number}", 250 * KIB)
            put(objects, "friend", "web", 100 * KIB)
            assert objects.is_unread("tenant/3")
            assert not any(
                objects.is_unread(key) for key in ("friend/web", "tenant/0", "tenant/1", "tenant/2")
            )

            put(objects, "tenant", "0", 400 * KIB, version=2)
            assert [key for key in ("tenant/0", "tenant/1", "tenant/2") if objects.is_unread(key)] == []
            put(objects, "tenant", "3", 100 * KIB, version=2)
            assert objects.is_unread("tenant/3"), "there is no room yet"
            await take(objects, 1)
            put(objects, "tenant", "3", 100 * KIB, version=3)
            assert not objects.is_unread("tenant/3"), "a newer line takes the place of the read"
            put(objects, "tenant", "3", 100 * KIB, version=2)
            assert [large.version for large in [await objects.take() for _ in range(4)]][-1] == 3

    asyncio.run(scenario())


def test_a_namespace_with_few_bytes_is_read_again_while_another_one_fills_the_room() -> None:
    async def scenario() -> None:
        objects = LargeObjects()
        with patch.object(large_objects, "WAITING_BYTES_MAX", 1000 * KIB):
            for number in range(3):
                put(objects, "friend", f"{number}", 400 * KIB)
            assert objects.is_unread("friend/2")
            for number in range(3):
                put(objects, "tenant", f"{number}", 600 * KIB)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(objects.next_unread(), 0.01)
            assert await take(objects, 1) == ["friend/0"]
            put(objects, "tenant", "3", 300 * KIB)
            for _ in range(3):
                assert (await objects.next_unread()).namespace == "friend"

    asyncio.run(scenario())


def test_an_event_of_a_small_object_wakes_nobody() -> None:
    """Each event of the watch would run two more tasks."""

    async def scenario() -> None:
        objects = LargeObjects()
        objects.discard("friend/web", 2)
        assert not objects._changed.is_set()
        put(objects, "tenant", "0", 600 * KIB)
        objects._changed.clear()
        objects.discard("tenant/0", 2)
        assert objects._changed.is_set()

    asyncio.run(scenario())


def test_the_watch_is_read_while_too_many_bytes_wait_and_the_pods_are_read_again() -> None:
    """It stopped, so that nobody's pods were read until fewer bytes waited."""

    async def scenario() -> None:
        beside = Beside()
        versions = {f"pod-{number}": 11 + number for number in range(6)}
        transport = Server(versions, [[*added(versions), event("ADDED", small("last", 40))], []])
        harness = ReflectorHarness(transport, run_beside=beside)
        with room_for(3):
            async with running(harness.reflector.run()):
                await until(lambda: harness.events, "the small pod")
                assert names(harness.events) == ["+last"]
                while len(harness.events) < 7:
                    await beside.release()

        assert sorted(names(harness.events)) == sorted(["+last", *(f"+{name}" for name in versions)])
        assert len(transport.read) < len(versions)

    on_virtual_time(scenario)


def test_the_watch_continues_where_it_ended_and_not_at_a_version_that_was_read() -> None:
    """Events between would be lost."""

    async def scenario() -> None:
        versions = {f"pod-{number}": 11 + number for number in range(4)}
        bookmark = event("BOOKMARK", {"metadata": {"resourceVersion": "30"}})
        transport = Server(versions, [[*added(versions), bookmark], []], answered_version=90)
        harness = ReflectorHarness(transport, run_beside=Beside(lambda: 0.1))
        with room_for(1):
            async with running(harness.reflector.run()):
                await until(lambda: len(harness.events) == 4 and len(transport.watched) > 1, "all")

        assert {request.params["resourceVersion"] for request in transport.watched[1:]} == {"30"}
        assert {update.pod.version for update in harness.events} >= {"90"}

    on_virtual_time(scenario)


@pytest.mark.parametrize("is_answered_first", [False, True])
def test_a_pod_that_is_deleted_while_it_is_read_again_does_not_come_back(is_answered_first: bool) -> None:
    async def scenario() -> None:
        versions = {"first": 11, "kept": 12, "gone": 13}
        deleted = event("DELETED", large("gone", 20))
        transport = Server(versions, [[*added(versions)], [deleted], []])
        harness = ReflectorHarness(transport, run_beside=Beside(lambda: 0.1))
        transport.delays_s["gone"] = 0.0 if is_answered_first else 30.0
        with room_for(1):
            async with running(harness.reflector.run()):
                await until(lambda: len(transport.watched) > 2, "the deletion")
                await asyncio.sleep(60)

        assert {"+first", "+kept"} <= set(names(harness.events))
        assert names(harness.events)[-1] == "-uid-default-gone" or "+gone" not in names(harness.events)
        assert names(harness.events).count("+kept") == 1

    on_virtual_time(scenario)


def test_an_answer_that_is_older_or_none_is_requested_again() -> None:
    async def scenario() -> None:
        versions = {"first": 11, "second": 12, "third": 13}
        transport = Server(versions, [[*added(versions)], []])
        transport.answers = [
            no_answer(),
            listed(14),
            listed(14, large("third", 10)),
            listed(14, large("third", 13, uid="another")),
        ]
        harness = ReflectorHarness(transport, run_beside=Beside(lambda: 0.1))
        with room_for(1):
            async with running(harness.reflector.run()):
                await until(lambda: names(harness.events)[-1:] == ["+third"] and not transport.answers, "all")
                await asyncio.sleep(60)

        latest = {update.pod.pod.name: update.pod.version for update in harness.events}
        assert latest == {name: str(version) for name, version in versions.items()}
        assert len(transport.read) >= 5

    on_virtual_time(scenario)


def added(versions: dict[str, int]) -> list[Any]:
    return [event("ADDED", large(name, version)) for name, version in versions.items()]


def room_for(lines: int) -> Any:
    length = len(str(LARGE)) + 2_000
    return patch.object(large_objects, "WAITING_BYTES_MAX", lines * length)


class Server(Script):
    """An empty list, then watches of a script, and these pods by their names. `read` has the names."""

    def __init__(self, versions: dict[str, int], streams: Any, *, answered_version: int = 0) -> None:
        super().__init__([listed(10)], streams)
        self._pods = {name: large(name, answered_version or version) for name, version in versions.items()}
        self.answers: list[Any] = []
        self.delays_s: dict[str, float] = {}
        self.read: list[str] = []

    async def request(self, request: ApiRequest) -> ApiResponse:
        selected = request.params.get("fieldSelector")
        if selected is None:
            return await super().request(request)
        name = selected.rpartition("=")[2]
        self.read.append(name)
        await asyncio.sleep(self.delays_s.get(name, 0.01))
        answers = [self.answers.pop(0)] if self.answers else [listed(99, self._pods[name])]
        return await Script(answers).request(request)
