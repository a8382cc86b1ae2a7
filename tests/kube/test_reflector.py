"""What the reflector promises, whatever faults the transport has."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from policysched.kube.client import api
from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import AnswerTooLong, ApiRequest, ApiResponse, ApiStream, Transport
from policysched.kube.decode.errors import MalformedObject
from policysched.kube.watch.large_objects import RunBeside
from policysched.kube.watch.reflector import Reflector, ReflectorSettings
from policysched.kube.watch.resources import NODES, PODS
from policysched.model.identifiers import PodUid
from policysched.sandbox.faults import FaultRates
from policysched.sandbox.transport import MemoryTransport
from policysched.scheduler.events import NodeDeleted, NodeUpdated, PodDeleted, PodUpdated
from tests.builders import node_manifest, pod_manifest
from tests.kube.world import (
    Answer,
    Script,
    World,
    event,
    listed,
    no_answer,
    on_virtual_time,
    running,
    until,
    versioned,
)

STORMY = FaultRates(
    latency_s=0.01,
    latency_spread_s=0.05,
    lost_before_share=0.1,
    lost_after_share=0.1,
    watch_lifetime_s=0.5,
    truncated_line_share=0.5,
    split_share=0.3,
)


class ReflectorHarness:
    """A reflector and what its consumer makes of its events: names to nodes, as a cache would."""

    def __init__(
        self,
        transport: Transport,
        resource: Any = PODS,
        *,
        run_beside: RunBeside | None = None,
        before_large: asyncio.Event | None = None,
        holds: bool = False,
        **settings: Any,
    ) -> None:
        self.events: list[Any] = []
        self.malformed: list[MalformedObject] = []
        self.listed = 0
        self.reflector: Reflector[Any] = Reflector(
            ApiClient(transport),
            resource,
            self.events.append,
            random=Random(1),
            connectivity=Connectivity(lambda: asyncio.get_running_loop().time()),
            settings=ReflectorSettings(**settings),
            on_listed=self._count,
            on_malformed=self.malformed.append,
            run_beside=run_beside,
            before_large=before_large,
            holds=holds,
        )

    def _count(self) -> None:
        self.listed += 1

    def state(self) -> dict[str, str | None]:
        """Pods by UID, and the node of each."""
        nodes: dict[str, str | None] = {}
        for change in self.events:
            match change:
                case PodUpdated(observed):
                    nodes[observed.pod.uid] = observed.node
                case PodDeleted(uid):
                    del nodes[uid]  # gone without having been seen would be a KeyError
        return nodes


def truth(world: World) -> dict[str, str | None]:
    return {pod["metadata"]["uid"]: pod["spec"].get("nodeName") for pod in world.local.list("pods")}


def names(events: Sequence[Any]) -> list[str]:
    return [
        f"+{event.pod.pod.name}" if isinstance(event, PodUpdated) else f"-{event.uid}"
        for event in events
        if isinstance(event, PodUpdated | PodDeleted)
    ]


def test_a_list_is_paged_and_the_watch_continues_from_its_version() -> None:
    async def scenario() -> None:
        world = World()
        for number in range(7):
            world.add_pod(f"p{number}")
        harness = ReflectorHarness(world.transport(), page_size=3)

        async with running(harness.reflector.run()):
            await until(lambda: harness.listed, "the list")
            world.add_pod("later")
            await until(lambda: len(harness.events) == 8, "the eighth pod")

        assert names(harness.events) == ["+p0", "+p1", "+p2", "+p3", "+p4", "+p5", "+p6", "+later"]
        assert harness.listed == 1

    on_virtual_time(scenario)


class Measured(MemoryTransport):
    """The limits of the lists, and the length of each page that was read."""

    def __init__(self, world: World) -> None:
        super().__init__(world.server)
        self.limits: list[int] = []
        self.read: list[int] = []

    async def request(self, request: ApiRequest) -> ApiResponse:
        self.limits.append(int(request.params.get("limit", "0")))
        answer = await super().request(request)
        self.read.append(len(answer.body))
        return answer


def test_of_a_list_with_large_objects_no_page_is_read_that_is_too_long() -> None:
    async def scenario() -> None:
        world = World()
        for number in range(1_000):
            length = 100_000 if 600 <= number < 640 else 10
            world.add_pod(f"p{number:04}", annotations={"example.com/text": "x" * length})
        transport = Measured(world)
        harness = ReflectorHarness(transport)
        with patch.object(api, "PAGE_BYTES_MAX", 2_000_000):
            async with running(harness.reflector.run()):
                await until(lambda: harness.listed, "the list")

        assert harness.state() == truth(world)
        assert max(transport.read) <= 2_000_000
        assert transport.limits[:3] == [500, 500, 62], "fewer at a time where they are large"
        assert transport.limits[-1] > 100, "more again after them"
        assert len(transport.limits) < 20

    on_virtual_time(scenario)


def test_an_object_that_is_longer_than_a_page_may_be_is_listed_alone() -> None:
    async def scenario() -> None:
        world = World()
        for number in range(3):
            world.add_pod(f"p{number}", annotations={"example.com/text": "x" * 2_000})
        transport = Measured(world)
        harness = ReflectorHarness(transport)
        with patch.object(api, "PAGE_BYTES_MAX", 1_000):
            async with running(harness.reflector.run()):
                await until(lambda: harness.listed, "the list")

        assert harness.state() == truth(world)
        assert transport.limits == [500, 62, 7, 1, 1, 1]

    on_virtual_time(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_over_a_faulty_transport_the_reflector_converges_to_the_server(seed: int) -> None:
    on_virtual_time(lambda: churn(seed))


@pytest.mark.parametrize("seed", range(6))
def test_the_same_with_pages_of_few_objects(seed: int) -> None:
    """Of many pages fewer may be lost, as a list without one of them begins again."""
    rates = replace(STORMY, lost_before_share=0.02, lost_after_share=0.02)
    with patch.object(api, "PAGE_BYTES_MAX", 1_000):
        on_virtual_time(lambda: churn(seed, rates))


def test_planted_reflector_that_accepts_old_events_is_detected() -> None:
    """The planted bug: versions are not compared."""
    with (
        patch("policysched.kube.watch.reflector.resource_version", lambda _: 0),
        pytest.raises(AssertionError),
    ):
        out_of_order()


async def churn(seed: int, rates: FaultRates = STORMY) -> None:
    world = World(history_changes_max=30)
    rng = Random(seed)
    harness = ReflectorHarness(
        world.transport(rates, seed), page_size=4, watch_min_s=1, watch_max_s=3, page_timeout_s=1
    )
    async with running(harness.reflector.run()):
        for number in range(120):
            alive = list(world.local.list("pods"))
            if alive and rng.random() < 0.45:
                world.local.delete("pods", rng.choice(alive), grace_period_s=0)
            else:
                world.add_pod(f"p{number}")
            await asyncio.sleep(rng.random() * 0.2)
        await until(lambda: harness.state() == truth(world), "the mirror to show what there is")

    assert len(truth(world)) > 5
    assert harness.reflector.watches_total > 5


def test_duplicate_and_late_events_change_nothing() -> None:
    out_of_order()


def out_of_order() -> None:
    def web(version: int, node: str | None = None) -> dict[str, Any]:
        return versioned(pod_manifest("web", node=node), version)

    async def scenario() -> None:
        transport = Script(
            [listed(10, web(9))],
            [
                [
                    event("MODIFIED", web(12, "a")),
                    event("MODIFIED", web(12, "a")),
                    event("MODIFIED", web(11)),
                    event("DELETED", web(13, "a")),
                    event("MODIFIED", web(12, "a")),
                    event("BOOKMARK", {"metadata": {"resourceVersion": "20"}}),
                ],
                [],
            ],
        )
        harness = ReflectorHarness(transport)

        async with running(harness.reflector.run()):
            await until(lambda: len(transport.watched) > 1, "the second watch")

        deleted = harness.events.pop()
        assert deleted == PodDeleted(PodUid("uid-default-web"))
        assert [event.pod.node for event in harness.events] == [None, "a"]
        assert [request.params["resourceVersion"] for request in transport.watched[:2]] == ["10", "20"]

    on_virtual_time(scenario)


def test_a_watch_without_changes_continues_from_its_bookmarks() -> None:
    async def scenario() -> None:
        world = World(bookmark_every_s=5)
        harness = ReflectorHarness(world.transport(), NODES, watch_min_s=30, watch_max_s=30)

        async with running(harness.reflector.run()):
            for number in range(10):
                world.add_pod(f"p{number}")  # the version of the first list grows old by what others write
                await asyncio.sleep(10)
                world.server.compact_history()
                await asyncio.sleep(15)

        assert harness.reflector.watches_total > 5
        assert harness.listed == 1

    on_virtual_time(scenario)


def test_an_incomplete_line_at_the_end_of_a_watch_is_ignored() -> None:
    async def scenario() -> None:
        whole = event("ADDED", versioned(pod_manifest("late"), 11))
        transport = Script([listed(10)], [[b'{"type":"ADDED","object":{"meta', no_answer()], [whole], []])
        harness = ReflectorHarness(transport)

        async with running(harness.reflector.run()):
            await until(lambda: harness.events, "the pod")

        assert names(harness.events) == ["+late"]
        assert harness.listed == 1

    on_virtual_time(scenario)


@pytest.mark.parametrize("how", ["410 in the stream", "the history is gone"])
def test_after_status_410_objects_deleted_meanwhile_are_removed(how: str) -> None:
    async def scenario() -> None:
        world = World()
        doomed, _ = world.add_pod("doomed"), world.add_pod("stays")
        transport = world.transport()
        harness = ReflectorHarness(transport)

        async with running(harness.reflector.run()):
            await until(lambda: harness.listed == 1, "the first list")
            transport.refuse_for(5)
            world.local.delete("pods", doomed, grace_period_s=0)
            world.add_pod("new")
            world.server.compact_history()
            await until(lambda: harness.listed == 2, "the second list")

        assert harness.state() == truth(world)
        assert names(harness.events).count("+stays") == 1

    async def scripted() -> None:
        old, new = versioned(pod_manifest("old"), 9), versioned(pod_manifest("new"), 30)
        expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        transport = Script([listed(10, old), listed(31, new)], [[event("ERROR", expired)], []])
        harness = ReflectorHarness(transport)

        async with running(harness.reflector.run()):
            await until(lambda: harness.listed == 2, "the second list")

        assert names(harness.events) == ["+old", "+new", "-uid-default-old"]

    on_virtual_time(scripted if how == "410 in the stream" else scenario)


def test_a_watch_error_other_than_410_causes_no_relist() -> None:
    async def scenario() -> None:
        broken = {"kind": "Status", "code": 500, "reason": "InternalError", "message": "etcd"}
        late = event("ADDED", versioned(pod_manifest("late"), 11))
        transport = Script([listed(10)], [[event("ERROR", broken)], [late], []])
        harness = ReflectorHarness(transport)

        async with running(harness.reflector.run()):
            await until(lambda: harness.events, "the pod")

        assert harness.listed == 1
        assert [request.params["resourceVersion"] for request in transport.watched[:2]] == ["10", "10"]

    on_virtual_time(scenario)


@pytest.mark.parametrize("how", ["in the stream", "in place of it"])
@pytest.mark.parametrize("code", [504, 410])
def test_relists_back_off_while_every_watch_fails(how: str, code: int) -> None:
    class NoWatch(Script):
        @asynccontextmanager
        async def stream(self, request: ApiRequest) -> AsyncIterator[ApiStream]:
            async with super().stream(request) as stream:
                yield stream if how == "in the stream" else ApiStream(code, {}, stream.chunks)

    async def scenario() -> None:
        broken = {"kind": "Status", "code": code, "message": "Too large, or too old resource version"}
        transport = NoWatch([listed(10)], [[event("ERROR", broken)]])
        harness = ReflectorHarness(transport)

        async with running(harness.reflector.run()):
            await asyncio.sleep(60)
            first = (harness.listed, len(transport.watched))
            await asyncio.sleep(240)

        assert 2 < first[0] < 12 and first[1] < 16, f"lists and watches of the first minute: {first}"
        assert 15 < harness.listed - first[0] < 35, "one each quarter of a minute, later on"

    on_virtual_time(scenario)


def test_a_list_whose_pages_expire_is_restarted_at_once() -> None:
    async def scenario() -> None:
        first, second = versioned(pod_manifest("a"), 1), versioned(pod_manifest("b"), 2)
        deleted = (
            410,
            {"kind": "Status", "reason": "Expired", "message": "the provided continue parameter is too old"},
        )
        transport = Script([listed(5, first, token="more"), deleted, listed(6, first, second)], [])
        harness = ReflectorHarness(transport)

        async with running(harness.reflector.run()):
            await until(lambda: harness.listed, "the list")

        assert names(harness.events) == ["+a", "+b"]
        assert "limit" not in transport.requests[-1].params

    on_virtual_time(scenario)


@pytest.mark.parametrize("failure", [(503, {}), AnswerTooLong(ApiRequest("GET", "/api/v1/pods"))])
def test_a_list_without_pages_that_fails_is_tried_in_pages_again(failure: Answer) -> None:
    """It may be more than a response may take; what was read of pages before does not count."""

    async def scenario() -> None:
        pod = versioned(pod_manifest("a"), 1)
        expired = (
            410,
            {"kind": "Status", "reason": "Expired", "message": "the continue parameter is too old"},
        )
        transport = Script([listed(5, pod, token="more"), expired, failure, listed(6, pod)], [])
        harness = ReflectorHarness(transport)

        async with running(harness.reflector.run()):
            await until(lambda: harness.listed, "the list")

        assert ["limit" in request.params for request in transport.requests[:4]] == [True, True, False, True]
        assert transport.requests[2].answer_bytes_max == api.LIST_BYTES_MAX

    on_virtual_time(scenario)


def test_a_malformed_object_is_left_out_and_logged_once_for_each_version() -> None:
    async def scenario() -> None:
        broken = versioned(node_manifest("broken", cpu="four"), 8)
        good = versioned(node_manifest("good"), 9)
        transport = Script(
            [listed(10, broken, good)],
            [
                [event("MODIFIED", broken)],
                [
                    event("MODIFIED", versioned(broken, 11)),
                    event("MODIFIED", versioned(node_manifest("broken"), 12)),
                ],
                [],
            ],
        )
        harness = ReflectorHarness(transport, NODES)

        async with running(harness.reflector.run()):
            await until(lambda: len(harness.events) == 2, "both nodes")

        assert [event.node.name for event in harness.events] == ["good", "broken"]
        assert [(obj.name, obj.field) for obj in harness.malformed] == [
            ("broken", "status.allocatable.cpu")
        ] * 2

    on_virtual_time(scenario)


def test_a_node_that_becomes_malformed_is_deleted_and_a_placed_pod_keeps_its_resources() -> None:
    async def scenario() -> None:
        nodes = Script(
            [listed(10, versioned(node_manifest("a"), 9))],
            [[event("MODIFIED", versioned(node_manifest("a", cpu="x"), 11))], []],
        )
        placed = pod_manifest("web", node="a", cpu="1")
        pods = Script(
            [listed(10, versioned(placed, 9))],
            [[event("MODIFIED", versioned(pod_manifest("web", node="a", cpu="x"), 11))], []],
        )
        of_nodes, of_pods = ReflectorHarness(nodes, NODES), ReflectorHarness(pods)

        async with running(of_nodes.reflector.run(), of_pods.reflector.run()):
            await until(lambda: of_nodes.malformed and of_pods.malformed, "both reports")

        assert [type(event) for event in of_nodes.events] == [NodeUpdated, NodeDeleted]
        assert [type(event) for event in of_pods.events] == [PodUpdated]

    on_virtual_time(scenario)


def test_a_server_restored_from_a_backup_is_accepted_with_older_versions() -> None:
    async def scenario() -> None:
        expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": "compacted"}
        before, after = pod_manifest("web", node="a"), pod_manifest("web")
        transport = Script(
            [listed(100, versioned(before, 90)), listed(50, versioned(after, 40))],
            [[event("ERROR", expired)], []],
        )
        harness = ReflectorHarness(transport)

        async with running(harness.reflector.run()):
            await until(lambda: harness.listed == 2, "the second list")

        assert [event.pod.node for event in harness.events] == ["a", None]

    on_virtual_time(scenario)


def test_a_server_that_lost_its_data_is_relisted() -> None:
    async def scenario() -> None:
        before, after = versioned(pod_manifest("before"), 90), versioned(pod_manifest("after"), 4)
        transport = Script([listed(100, before), listed(5, after)], [[no_answer()], []])
        harness = ReflectorHarness(transport)

        async with running(harness.reflector.run()):
            await until(lambda: harness.listed == 2, "the second list")

        assert names(harness.events) == ["+before", "+after", "-uid-default-before"]
        assert [request.params["resourceVersion"] for request in transport.watched] == ["100", "5"]

    on_virtual_time(scenario)


def test_an_outage_of_the_server_is_logged_once_when_it_begins_and_once_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "policysched.kube.client.connectivity")

    async def scenario() -> None:
        world = World()
        transport = world.transport()
        transport.refuse_for(100)
        harness = ReflectorHarness(transport)

        async with running(harness.reflector.run()):
            await until(lambda: harness.listed, "the list", within_s=200)

    on_virtual_time(scenario)

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "the API server is unreachable or does not answer; retrying"),
        ("INFO", "the API server answers again"),
    ]


def test_watches_that_close_at_once_are_not_reopened_in_a_tight_loop() -> None:
    async def scenario() -> None:
        transport = Script([listed(10)], [[]])
        harness = ReflectorHarness(transport)

        async with running(harness.reflector.run()):
            await asyncio.sleep(60)

        assert 3 < len(transport.watched) < 30

    on_virtual_time(scenario)


def test_a_silent_watch_is_reopened_from_its_last_version() -> None:
    async def scenario() -> None:
        world = World(bookmark_every_s=10_000)
        harness = ReflectorHarness(world.transport(), idle_timeout_s=30, watch_min_s=9000, watch_max_s=9000)

        async with running(harness.reflector.run()):
            await until(lambda: harness.listed, "the list")
            await asyncio.sleep(300)

        assert harness.reflector.watches_total >= 5
        assert harness.listed == 1

    on_virtual_time(scenario)
