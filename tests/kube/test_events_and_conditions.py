"""Words behind binds: coalesced, bounded, and never against a binding."""

import asyncio
import logging
import re
from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch

import orjson
import pytest

from policysched.kube.client.api import ApiClient, TooManyRequests
from policysched.kube.client.backoff import Backoff
from policysched.kube.client.transport import (
    METADATA_LIST_ONLY,
    METADATA_ONLY,
    ApiRequest,
    ApiResponse,
    Transport,
)
from policysched.kube.write.events_and_conditions import Reporter, ReporterSettings, UnboundPodVersion
from policysched.kube.write.namespace_turns import NamespaceTurns
from policysched.kube.write.rate_limit import RateLimiter
from policysched.kube.write.report_content import EventContent, EventObject, PodScheduledCondition, event_name
from policysched.sandbox.apiserver.events import as_events_v1
from policysched.sandbox.apiserver.requests import ServerRequest
from policysched.sandbox.faults import FaultRates
from tests.kube.world import EPOCH_S, Script, World, no_answer, on_virtual_time, running, until


class Reporting:
    """`world`: what the watch shows is what is there. Without one, every pod is shown in version 7."""

    def __init__(self, transport: Transport, world: World | None = None, **settings: Any) -> None:
        self.binds_waiting = 0
        self.shown: Callable[[str], UnboundPodVersion | None] = lambda _: UnboundPodVersion("7", 1)
        if world is not None:
            self.shown = lambda uid: shown(world, uid)
        loop = asyncio.get_running_loop()
        self.reporter = Reporter(
            ApiClient(transport),
            instance="test-1",
            now_ns=lambda: int((EPOCH_S + loop.time()) * 1e9),
            random=Random(1),
            queued_binds=lambda: self.binds_waiting,
            unbound_version=lambda uid: self.shown(uid),
            settings=ReporterSettings(**settings),
        )

    async def wait_until_drained(self) -> None:
        """Waits until all queued writes are written or abandoned."""
        while self.reporter.pending_writes:
            await asyncio.sleep(0.02)


class Observed:
    """A transport that keeps its requests."""

    def __init__(self, transport: Transport) -> None:
        self.requests: list[ApiRequest] = []
        self.stream = transport.stream
        self._transport = transport

    async def request(self, request: ApiRequest) -> ApiResponse:
        self.requests.append(request)
        return await self._transport.request(request)


def shown(world: World, uid: str) -> UnboundPodVersion | None:
    pods = [pod for pod in world.local.list("pods") if pod["metadata"]["uid"] == uid]
    if not pods or pods[0]["spec"].get("nodeName"):
        return None
    return UnboundPodVersion(pods[0]["metadata"]["resourceVersion"], pods[0]["metadata"].get("generation", 0))


def about(pod: dict[str, Any]) -> EventObject:
    meta = pod["metadata"]
    return EventObject("Pod", meta["namespace"], meta["name"], meta["uid"])


def failed(pod: dict[str, Any], note: str = "0/1 nodes are available: 1 Insufficient cpu.") -> EventContent:
    return EventContent(about(pod), "Warning", "FailedScheduling", "Scheduling", note, "test")


def condition(pod: dict[str, Any], message: str = "no room") -> PodScheduledCondition:
    meta = pod["metadata"]
    return PodScheduledCondition(meta["namespace"], meta["name"], meta["uid"], "Unschedulable", message)


def bind(world: World, name: str, node: str) -> None:
    path = f"/api/v1/namespaces/default/pods/{name}/binding"
    answer = world.server.handle(
        ServerRequest("POST", path, body=orjson.dumps({"target": {"kind": "Node", "name": node}}))
    )
    assert isinstance(answer, ApiResponse) and answer.status == 201


def conditions(world: World, name: str) -> list[tuple[str, str, str]]:
    conditions = world.pod(name)["status"].get("conditions", [])
    return [
        (condition["status"], condition.get("reason", ""), condition.get("message", ""))
        for condition in conditions
        if condition["type"] == "PodScheduled"
    ]


def events(world: World) -> list[dict[str, Any]]:
    return [as_events_v1(event) for event in world.local.list("events")]


def test_an_event_has_its_reporter_action_and_object() -> None:
    async def scenario() -> None:
        world = World()
        pod = world.add_pod("web")
        reporting = Reporting(world.transport(), world)
        async with running(reporting.reporter.run()):
            reporting.reporter.record_event(failed(pod))
            await reporting.wait_until_drained()

        (event,) = events(world)
        assert event["regarding"]["uid"] == pod["metadata"]["uid"]
        assert (event["reason"], event["type"], event["action"]) == (
            "FailedScheduling",
            "Warning",
            "Scheduling",
        )
        assert (event["reportingController"], event["reportingInstance"]) == ("test", "test-1")
        assert event["note"] == "0/1 nodes are available: 1 Insufficient cpu."

    on_virtual_time(scenario)


def test_a_long_note_is_truncated_in_bytes_as_the_server_limits_it() -> None:
    async def scenario() -> None:
        world = World()
        pod = world.add_pod("web")
        reporting = Reporting(world.transport(), world)
        async with running(reporting.reporter.run()):
            reporting.reporter.record_event(failed(pod, note="…" * 1000))
            await reporting.wait_until_drained()

        (event,) = events(world)
        assert len(event["note"].encode()) <= 1024
        assert event["note"].endswith("… ...")

    on_virtual_time(scenario)


def test_unprintable_characters_are_escaped_in_an_event_and_in_a_condition() -> None:
    async def scenario() -> None:
        world = World()
        pod = world.add_pod("web")
        reporting = Reporting(world.transport(), world)
        async with running(reporting.reporter.run()):
            reporting.reporter.record_event(failed(pod, "no \u202e way\x1b[2J"))
            reporting.reporter.set_condition(condition(pod, "no \u202e way\x1b[2J"))
            await reporting.wait_until_drained()

        (event,) = events(world)
        assert event["note"] == "no \\u202e way\\x1b[2J"
        assert conditions(world, "web") == [("False", "Unschedulable", event["note"])]

    on_virtual_time(scenario)


def test_of_long_texts_only_their_beginning_is_remembered() -> None:
    async def scenario() -> None:
        world = World()
        pod = world.add_pod("web")
        reporting = Reporting(world.transport(), world)
        async with running(reporting.reporter.run()):
            reporting.reporter.record_event(failed(pod, "x" * 100_000))
            reporting.reporter.set_condition(condition(pod, "y" * 100_000))
            await reporting.wait_until_drained()

        assert [event["note"] for event in events(world)] == ["x" * 1020 + " ..."]
        assert conditions(world, "web") == [("False", "Unschedulable", "y" * 100_000)]
        assert all(len(content.note) < 5_000 for content in reporting.reporter._series)
        written = reporting.reporter._written_conditions.values()
        assert written and all(len(str(content)) < 5_000 for content in written)

    on_virtual_time(scenario)


def test_repeated_events_become_a_series_with_a_count() -> None:
    async def scenario() -> None:
        world = World()
        pod = world.add_pod("web")
        reporting = Reporting(world.transport(), world)
        async with running(reporting.reporter.run()):
            for _ in range(90):
                reporting.reporter.record_event(failed(pod))
                await asyncio.sleep(1)
            reporting.reporter.record_event(failed(pod, "other words"))
            await asyncio.sleep(120)

        repeated, other = sorted(events(world), key=lambda event: event["note"])
        assert repeated["series"]["count"] == 90
        assert "series" not in other
        assert reporting.reporter.counts.events_written <= 5

    on_virtual_time(scenario)


def test_only_the_newest_condition_is_written_and_an_equal_one_is_not_rewritten() -> None:
    async def scenario() -> None:
        world = World()
        pod = world.add_pod("web")
        reporting = Reporting(world.transport(), world)
        for number in range(10):
            reporting.reporter.set_condition(condition(pod, f"words {number}"))
        async with running(reporting.reporter.run()):
            await reporting.wait_until_drained()
            reporting.reporter.set_condition(condition(pod, "words 9"))
            await reporting.wait_until_drained()

        assert conditions(world, "web") == [("False", "Unschedulable", "words 9")]
        assert reporting.reporter.counts.conditions_written == 1

    on_virtual_time(scenario)


def test_a_new_message_keeps_the_transition_time_of_the_status() -> None:
    async def scenario() -> None:
        world = World()
        pod = world.add_pod("web")
        reporting = Reporting(world.transport(), world)
        async with running(reporting.reporter.run()):
            reporting.reporter.set_condition(condition(pod, "first"))
            await asyncio.sleep(30)
            reporting.reporter.set_condition(condition(pod, "second"))
            await asyncio.sleep(30)

        (written,) = world.pod("web")["status"]["conditions"]
        assert written["message"] == "second"
        assert written["lastTransitionTime"] == "2026-01-01T00:00:00Z"

    on_virtual_time(scenario)


def test_a_condition_is_retried_until_it_is_written_unless_the_pod_is_being_bound() -> None:
    async def scenario() -> None:
        world = World()
        pod, other = world.add_pod("web"), world.add_pod("other")
        transport = world.transport()
        transport.refuse_for(20)
        reporting = Reporting(transport, world)
        async with running(reporting.reporter.run()):
            reporting.reporter.set_condition(condition(pod))
            reporting.reporter.set_condition(condition(other))
            await asyncio.sleep(5)
            reporting.reporter.discard_condition(other["metadata"]["uid"])
            await asyncio.sleep(60)

        assert conditions(world, "web") == [("False", "Unschedulable", "no room")]
        assert conditions(world, "other") == []

    on_virtual_time(scenario)


def test_after_a_lost_patch_the_earlier_message_is_written_again() -> None:
    async def scenario() -> None:
        transport = Script([(200, {}), no_answer(), (200, {})])
        reporting = Reporting(transport, concurrent_writes_max=1)
        pod = {"metadata": {"namespace": "default", "name": "web", "uid": "u1"}}
        async with running(reporting.reporter.run()):
            reporting.reporter.set_condition(condition(pod, "first"))
            await reporting.wait_until_drained()
            reporting.reporter.set_condition(condition(pod, "second"))
            await until(lambda: len(transport.requests) == 2, "the patch that is lost")
            reporting.reporter.set_condition(condition(pod, "first"))
            await reporting.wait_until_drained()

        messages = [
            orjson.loads(request.body)["status"]["conditions"][0]["message"] for request in transport.requests
        ]
        assert messages == ["first", "second", "first"]

    on_virtual_time(scenario)


def test_a_late_or_duplicate_condition_never_reaches_a_bound_pod() -> None:
    async def scenario() -> None:
        world = World()
        world.add_node("a")
        pod = world.add_pod("web")
        reporting = Reporting(world.transport(FaultRates(latency_s=1.5, duplicate_share=1.0)), world)
        async with running(reporting.reporter.run()):
            reporting.reporter.set_condition(condition(pod))
            await asyncio.sleep(0.1)
            reporting.reporter.discard_condition(pod["metadata"]["uid"])
            bind(world, "web", "a")
            await asyncio.sleep(60)

        assert conditions(world, "web") == [("True", "", "")]
        assert reporting.reporter.counts.conditions_written == 0

    on_virtual_time(scenario)


def test_planted_condition_without_a_resource_version_reaches_the_bound_pod() -> None:
    """The planted bug of the test before."""
    original = Reporter._condition_body

    def careless(self: Reporter, *what: Any, **more: Any) -> dict[str, Any]:
        body = original(self, *what, **more)
        del body["metadata"]["resourceVersion"]
        return body

    with (
        patch.object(Reporter, "_condition_body", careless),
        pytest.raises(AssertionError, match="no room"),
    ):
        test_a_late_or_duplicate_condition_never_reaches_a_bound_pod()


def test_after_a_conflict_the_metadata_of_the_current_pod_is_read_and_its_condition_written() -> None:
    async def scenario() -> None:
        world = World()
        pod = world.add_pod("web")
        transport = Observed(world.transport())
        reporting = Reporting(transport)
        reporting.shown = lambda _: UnboundPodVersion(pod["metadata"]["resourceVersion"], 1)
        world.local.update(
            "pods", pod, lambda pod: {**pod, "metadata": {**pod["metadata"], "labels": {"a": "b"}}}
        )
        async with running(reporting.reporter.run()):
            reporting.reporter.set_condition(condition(pod))
            await reporting.wait_until_drained()

        assert conditions(world, "web") == [("False", "Unschedulable", "no room")]
        assert reporting.reporter.counts.failed == 0
        accepted = [(request.method, request.accept) for request in transport.requests]
        assert accepted == [("PATCH", METADATA_ONLY), ("GET", METADATA_LIST_ONLY), ("PATCH", METADATA_ONLY)]

    on_virtual_time(scenario)


@pytest.mark.parametrize("change", ["bound", "replaced", "deleted"])
def test_after_a_conflict_with_a_pod_that_is_no_longer_the_unbound_one_nothing_is_written(
    change: str,
) -> None:
    async def scenario() -> None:
        world = World()
        pod = world.add_pod("web")
        transport = Observed(world.transport())
        reporting = Reporting(transport)
        reporting.shown = lambda _: UnboundPodVersion("1", 1)
        if change == "bound":
            bind(world, "web", "n1")
        else:
            world.local.delete("pods", pod, grace_period_s=0)
        if change == "replaced":
            world.add_pod("web")
        async with running(reporting.reporter.run()):
            reporting.reporter.set_condition(condition(pod))
            await reporting.wait_until_drained()

        assert [request.method for request in transport.requests].count("PATCH") == 1
        assert reporting.reporter.counts.conditions_written == 0

    on_virtual_time(scenario)


def test_an_answer_that_is_no_list_is_asked_for_again_and_an_empty_list_ends_the_write() -> None:
    async def scenario() -> None:
        transport = Script([(409, {}), (200, {}), (409, {}), (200, {"items": None}), (500, {})])
        reporting = Reporting(transport, concurrent_writes_max=1)
        pod = {"metadata": {"namespace": "default", "name": "web", "uid": "u1"}}
        async with running(reporting.reporter.run()):
            reporting.reporter.set_condition(condition(pod))
            await reporting.wait_until_drained()

        assert [request.method for request in transport.requests] == ["PATCH", "GET", "PATCH", "GET"]

    on_virtual_time(scenario)


def test_a_condition_has_the_observed_generation_if_the_pod_has_one() -> None:
    async def scenario() -> None:
        transport = Script([(200, {})])
        reporting = Reporting(transport, concurrent_writes_max=1)
        pod = {"metadata": {"namespace": "default", "name": "web", "uid": "u1"}}
        async with running(reporting.reporter.run()):
            reporting.shown = lambda _: UnboundPodVersion("7", 3)
            reporting.reporter.set_condition(condition(pod, "counted"))
            await reporting.wait_until_drained()
            reporting.shown = lambda _: UnboundPodVersion("7", 0)
            reporting.reporter.set_condition(condition(pod, "not counted"))
            await reporting.wait_until_drained()

        patches = [orjson.loads(request.body) for request in transport.requests]
        assert [patch["status"]["conditions"][0].get("observedGeneration") for patch in patches] == [3, None]
        assert {patch["metadata"]["resourceVersion"] for patch in patches} == {"7"}

    on_virtual_time(scenario)


def test_a_condition_is_not_written_on_another_pod_of_the_same_name() -> None:
    async def scenario() -> None:
        world = World()
        first = world.add_pod("web")
        world.local.delete("pods", first, grace_period_s=0)
        world.add_pod("web")
        reporting = Reporting(world.transport(), world)
        async with running(reporting.reporter.run()):
            reporting.reporter.set_condition(condition(first))
            await reporting.wait_until_drained()

        assert conditions(world, "web") == []

    on_virtual_time(scenario)


def test_few_reports_are_sent_while_many_binds_are_queued_and_conditions_before_events() -> None:
    """One namespace can keep its binds queued: none for so long was a pause for everybody."""

    async def scenario() -> None:
        transport = Script([(200, {})])
        reporting = Reporting(transport, concurrent_writes_max=1)
        reporting.binds_waiting = 201
        async with running(reporting.reporter.run()):
            for number in range(100):
                pod = {"metadata": {"namespace": "default", "name": f"p{number}", "uid": f"u{number}"}}
                reporting.reporter.record_event(failed(pod))
                reporting.reporter.set_condition(condition(pod))
            await asyncio.sleep(1)
            assert 45 <= len(transport.requests) <= 50

            reporting.binds_waiting = 200
            await asyncio.sleep(0.1)
            assert reporting.reporter.pending_writes == 0

        assert [request.method for request in transport.requests] == ["PATCH"] * 100 + ["POST"] * 100
        assert transport.requests[0].accept == METADATA_ONLY  # the pod may have a megabyte

    on_virtual_time(scenario)


DENIED = 'admission webhook "x" denied the request: no'
BY_RBAC = 'pods "p" is forbidden: User "policysched" cannot patch resource "pods/status"'


async def refused(message: str, *gaps_s: float) -> None:
    """A condition after each gap."""
    answer = 403, {"kind": "Status", "reason": "Forbidden", "message": message}
    reporting = Reporting(Script([answer] * len(gaps_s)))
    async with running(reporting.reporter.run()):
        for number, gap_s in enumerate(gaps_s):
            await asyncio.sleep(gap_s)
            condition = PodScheduledCondition("a", f"p{number}", f"u{number}", "Unschedulable", "no")
            reporting.reporter.set_condition(condition)
            await reporting.wait_until_drained()
    assert reporting.reporter.counts.failed == len(gaps_s)


def test_conditions_that_webhooks_deny_are_one_warning_a_minute_with_their_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A thousand pods wrote a hundred lines a second, of up to 4 KiB each; then there was none."""
    with caplog.at_level(logging.WARNING):
        on_virtual_time(lambda: refused(DENIED, 0, 1, 1, 61))

    assert [record.__dict__["count"] for record in caplog.records] == [1, 3]
    assert {record.__dict__["error"] for record in caplog.records} == {DENIED}


def test_a_condition_that_rbac_denies_is_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        on_virtual_time(lambda: refused(BY_RBAC, 0))

    assert len(caplog.records) == 1


def test_the_backlog_is_bounded_and_dropped_reports_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        reporting = Reporting(
            Script([(200, {})]), queued_events_max=10, queued_conditions_max=5, series_max=20
        )
        for number in range(100):
            pod = {"metadata": {"namespace": "default", "name": f"p{number}", "uid": f"u{number}"}}
            reporting.reporter.record_event(failed(pod))
            reporting.reporter.set_condition(condition(pod))

        assert reporting.reporter.pending_writes == 15
        assert reporting.reporter.counts.dropped == 90 + 95

    with caplog.at_level(logging.WARNING):
        on_virtual_time(scenario)

    assert len(caplog.records) == 1


class HangingNamespace(Script):
    """A webhook answers no write in the namespace `hanging`."""

    async def request(self, request: ApiRequest) -> ApiResponse:
        if "/namespaces/hanging/" in request.path:
            await asyncio.sleep(4)
            raise no_answer()
        return await super().request(request)


def test_reports_of_a_namespace_whose_webhook_hangs_delay_and_lose_none_of_others() -> None:
    async def scenario() -> None:
        transport = HangingNamespace([(200, {})])
        reporting = Reporting(transport, queued_events_max=100)
        async with running(reporting.reporter.run()):
            for number in range(200):
                pod = {"metadata": {"namespace": "hanging", "name": f"p{number}", "uid": f"h{number}"}}
                reporting.reporter.record_event(failed(pod))
                reporting.reporter.set_condition(condition(pod))
            await asyncio.sleep(60)
            for number in range(50):
                pod = {"metadata": {"namespace": "other", "name": f"p{number}", "uid": f"u{number}"}}
                reporting.reporter.record_event(failed(pod))
                reporting.reporter.set_condition(condition(pod))
            await asyncio.sleep(1)
        assert len(transport.requests) == 100
        counts = reporting.reporter.counts
        assert (counts.conditions_written, counts.events_written) == (50, 50)

    on_virtual_time(scenario)


def test_what_is_reported_of_pods_that_are_gone_leaves_nothing_while_a_webhook_hangs() -> None:
    """Each pod left its turn and the backoff of its condition, for ever."""

    async def scenario() -> None:
        transport = HangingNamespace([(200, {})])
        reporter = Reporting(transport).reporter
        async with running(reporter.run()):
            for number in range(2_000):
                pod = {"metadata": {"namespace": "hanging", "name": f"p{number}", "uid": f"h{number}"}}
                reporter.set_condition(condition(pod))
                await asyncio.sleep(0.5)
                reporter.discard_condition(f"h{number}")
            await asyncio.sleep(10)
            assert reporter.counts.failed > 20
            assert len(reporter._backoffs) <= 2
            assert len(reporter._turns) <= 3
            reporter.record_event(failed({"metadata": {"namespace": "other", "name": "a", "uid": "a"}}))
            await asyncio.sleep(1)
            assert reporter.counts.events_written == 1

    on_virtual_time(scenario)


def test_every_report_has_a_turn_after_others_were_discarded() -> None:
    reports_of_random_histories_are_written()


def test_planted_queue_that_gives_one_turn_too_few_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = NamespaceTurns.waiting
    monkeypatch.setattr(NamespaceTurns, "waiting", lambda self, key: waiting(self, key) + 1)
    with pytest.raises(AssertionError):
        reports_of_random_histories_are_written()


def reports_of_random_histories_are_written() -> None:
    """What is put last is, whatever was removed before it."""

    async def scenario() -> None:
        for seed in range(30):
            random, transport = Random(seed), Script([(200, {})])
            reporting = Reporting(transport, concurrent_writes_max=2)
            reporter = reporting.reporter
            wanted: dict[str, str] = {}
            async with running(reporter.run()):
                for number in range(100):
                    uid = f"u{random.randrange(5)}"
                    pod = {"metadata": {"namespace": "default", "name": uid, "uid": uid}}
                    match random.randrange(4):
                        case 0:
                            reporter.discard_condition(uid)
                            wanted.pop(uid, None)
                        case 1:
                            reporter.record_event(failed(pod, f"note {number}"))
                        case _:
                            reporter.set_condition(condition(pod, f"message {number}"))
                            wanted[uid] = f"message {number}"
                    await asyncio.sleep(random.choice([0, 0, 0.001, 0.02]))
                await asyncio.sleep(5)
            assert len(reporter._queue) == 0
            bodies = [orjson.loads(request.body) for request in transport.requests]
            for uid, message in wanted.items():
                written = [
                    body["status"]["conditions"][0]["message"]
                    for body in bodies
                    if body.get("metadata", {}).get("uid") == uid
                ]
                assert written[-1] == message, f"seed {seed}"

    on_virtual_time(scenario)


@pytest.mark.parametrize(
    "answer",
    [
        {"items": "text"},
        {"items": {"a": 1}},
        {"items": [1]},
        {"items": [None]},
        {"items": [{"metadata": 5}]},
        {},
    ],
)
def test_an_answer_that_is_no_list_of_pods_ends_nothing(answer: object) -> None:
    async def scenario() -> None:
        transport = Script([(409, {}), (200, answer), (200, {})])
        reporting = Reporting(transport)
        async with running(reporting.reporter.run()):
            reporting.reporter.set_condition(
                condition({"metadata": {"namespace": "default", "name": "web", "uid": "u1"}})
            )
            await asyncio.sleep(10)
        assert reporting.reporter.counts.conditions_written == 1

    on_virtual_time(scenario)


@pytest.mark.parametrize(
    "name", ["a" * 253, "a" * 235 + "." + "b" * 17, "a" * 63, "a." * 117 + "-" * 3 + "b" * 16]
)
def test_the_name_of_an_event_is_one_that_the_server_takes(name: str) -> None:
    """That of a pod with a long name was refused, so such a pod had no events at all."""
    random = Random(1)
    first, second = event_name(name, random), event_name(name, random)
    assert first != second
    assert len(first) <= 253
    assert all(re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", label) for label in first.split("."))


def test_an_event_that_was_garbage_collected_is_created_again() -> None:
    async def scenario() -> None:
        world = World()
        pod = world.add_pod("web")
        reporting = Reporting(world.transport(), world, series_update_interval_s=1)
        async with running(reporting.reporter.run()):
            reporting.reporter.record_event(failed(pod))
            await asyncio.sleep(5)
            world.local.delete("events", events(world)[0])
            reporting.reporter.record_event(failed(pod))
            await asyncio.sleep(5)

        (event,) = events(world)
        assert event["series"]["count"] == 2

    on_virtual_time(scenario)


def test_an_event_that_a_quota_refuses_for_the_moment_is_sent_again() -> None:
    """Such a conflict does not say that it was created."""

    async def scenario() -> None:
        transport = Script([(409, {"kind": "Status", "reason": "Conflict"}), (200, {})])
        reporting = Reporting(transport)
        async with running(reporting.reporter.run()):
            reporting.reporter.record_event(
                failed({"metadata": {"namespace": "ns", "name": "web", "uid": "u"}})
            )
            await reporting.wait_until_drained()

        assert [request.method for request in transport.requests] == ["POST", "POST"]
        assert reporting.reporter.counts.events_written == 1

    on_virtual_time(scenario)


def test_an_event_without_a_response_is_dropped_after_a_few_attempts() -> None:
    async def scenario() -> None:
        transport = Script([no_answer()])
        reporting = Reporting(transport, event_attempts_max=3)
        async with running(reporting.reporter.run()):
            reporting.reporter.record_event(
                failed({"metadata": {"namespace": "default", "name": "web", "uid": "u1"}})
            )
            await reporting.wait_until_drained()

        assert len(transport.requests) == 3
        assert len({orjson.loads(request.body)["metadata"]["name"] for request in transport.requests}) == 1
        assert reporting.reporter.counts.failed == 1

    on_virtual_time(scenario)


def test_an_event_outlives_a_restart_of_the_api_server() -> None:
    class Restarting(Script):
        """Nobody answers for half a minute."""

        async def request(self, request: ApiRequest) -> ApiResponse:
            if asyncio.get_running_loop().time() < 30:
                raise no_answer()
            return await super().request(request)

    async def scenario() -> None:
        transport = Restarting([(201, {})])
        reporting = Reporting(transport)
        async with running(reporting.reporter.run()):
            reporting.reporter.record_event(
                failed({"metadata": {"namespace": "default", "name": "web", "uid": "u1"}})
            )
            await reporting.wait_until_drained()

        assert len(transport.requests) == 1
        assert (reporting.reporter.counts.events_written, reporting.reporter.counts.failed) == (1, 0)

    on_virtual_time(scenario)


def test_a_rate_limit_allows_a_burst_and_then_its_rate() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        budget = RateLimiter(per_s=10, burst=5)
        times_s = []
        for _ in range(10):
            await budget.acquire()
            times_s.append(loop.time())

        assert times_s[4] == 0
        assert times_s[9] == pytest.approx(0.5)

    on_virtual_time(scenario)


def test_backoff_doubles_with_jitter_up_to_a_maximum_and_respects_retry_after() -> None:
    backoff = Backoff(Random(7), initial_s=1, max_s=8)

    waits_s = [backoff.next_delay_s() for _ in range(6)]

    for wait_s, whole_s in zip(waits_s, [1, 2, 4, 8, 8, 8], strict=True):
        assert whole_s / 2 <= wait_s <= whole_s
    assert backoff.next_delay_s(TooManyRequests(429, "", "slow down", retry_after_s=3600)) == 8
    backoff.reset()
    assert backoff.next_delay_s() <= 1
    backoff.reset()
    assert backoff.next_delay_s(TooManyRequests(429, "", "slow down", retry_after_s=7)) == 7
