"""What is applied instead of the event of an object that raised."""

import asyncio
from typing import Any

import pytest

from policysched.daemon.process import ExitReason
from policysched.evaluate import NotCounted
from policysched.model.identifiers import NodeName, PodUid
from policysched.runtime import program
from policysched.runtime.failed_objects import (
    NAMESPACE_FAILURES_MAX,
    RETRY_NS,
    FailedObjects,
)
from policysched.scheduler import events as e
from policysched.scheduler.scheduler import Scheduler
from tests.builders import finished, node, pending, placed, pod
from tests.kube.world import World, on_virtual_time, until
from tests.runtime.test_scheduler_app import PLAIN, app_on, put_policies

ERROR = OverflowError("planted")
MINUTE_NS = 60 * 10**9


def failed(*events: e.Event) -> FailedObjects:
    objects = FailedObjects()
    for event in events:
        objects.admit(event, 0)
        assert objects.note(event, ERROR, 0)
        objects.begin()
    return objects


def test_a_pending_pod_is_left_out_and_others_are_not() -> None:
    bad, good = e.PodUpdated(pending(pod("bad"))), e.PodUpdated(pending(pod("good")))
    objects = failed(bad)

    assert objects.admit(bad, 1) is None
    assert objects.admit(good, 1) is good
    assert objects.counts(1) == {"Pod": 1}


def test_a_placed_pod_counts_with_its_room_alone() -> None:
    bad = e.PodUpdated(placed(pod("bad", cpu="2", labels={"a": "b"}, host_ports=[80]), "n"))

    admitted = failed(bad).admit(bad, 1)

    assert isinstance(admitted, e.PodUpdated)
    assert admitted.pod.node == "n"
    assert admitted.pod.pod.labels == {}
    assert admitted.pod.pod.requests == bad.pod.pod.requests
    assert admitted.pod.pod.host_ports == bad.pod.pod.host_ports


def test_the_node_is_left_out_if_its_room_raises_too_until_the_pod_is_gone() -> None:
    bad, its_node = e.PodUpdated(placed(pod("bad"), "n")), e.NodeUpdated(node("n"))
    objects = failed(bad, bad)

    assert objects.admit(bad, 1) is None
    assert objects.admit(its_node, 1) is None
    objects.admit(e.PodDeleted(bad.pod.pod.uid), 2)
    assert objects.take_due(2 * MINUTE_NS) == [its_node]


def test_a_pod_that_has_finished_takes_no_room() -> None:
    bad = pod("bad")
    objects = failed(e.PodUpdated(placed(bad, "n")))

    assert objects.admit(e.PodUpdated(finished(bad, "n")), 1) == e.PodDeleted(bad.uid)


def test_it_is_tried_again_after_an_hour_then_after_two() -> None:
    bad = e.PodUpdated(pending(pod("bad")))
    objects = failed(bad)
    objects.admit(bad, 1)

    assert objects.take_due(RETRY_NS - 1) == []
    assert objects.take_due(RETRY_NS + MINUTE_NS) == [bad]
    assert objects.admit(bad, RETRY_NS + MINUTE_NS) is bad
    objects.note(bad, ERROR, RETRY_NS)
    objects.admit(bad, RETRY_NS)
    assert objects.take_due(3 * RETRY_NS - 1) == []
    assert objects.take_due(3 * RETRY_NS + MINUTE_NS) == [bad]


def test_a_namespace_whose_objects_raise_again_and_again_is_left_out_as_a_whole() -> None:
    bad = [e.PodUpdated(pending(pod(f"bad-{n}", namespace="tenant"))) for n in range(NAMESPACE_FAILURES_MAX)]
    objects = failed(*bad)
    uses, other = placed(pod("more", cpu="1", namespace="tenant"), "n"), e.PodUpdated(pending(pod("other")))

    assert objects.admit(e.PodUpdated(pending(pod("new", namespace="tenant"))), 1) is None
    assert isinstance(objects.admit(e.PodUpdated(uses), 1), e.PodUpdated)
    assert objects.admit(other, 1) is other


@pytest.mark.parametrize(
    "event", [e.Synced(), e.SamplesFailed("p", "m"), e.ExtendersAnswered(1, {})], ids=lambda event: str(event)
)
def test_an_event_of_no_object_is_not_passed_over(event: e.Event) -> None:
    assert not FailedObjects().note(event, ERROR, 0)


def test_a_pod_that_cannot_be_counted_is_left_out_then_its_node() -> None:
    bad, its_node = e.PodUpdated(placed(pod("bad", labels={"a": "b"}), "n")), e.NodeUpdated(node("n"))
    objects = FailedObjects()

    assert objects.note(None, NotCounted(NodeName("n"), bad.pod.pod), 0)
    admitted = objects.admit(bad, 1)
    assert isinstance(admitted, e.PodUpdated)
    assert admitted.pod.pod.labels == {}
    assert objects.admit(its_node, 1) is its_node
    assert objects.note(None, NotCounted(NodeName("n"), bad.pod.pod), 1)
    assert objects.admit(its_node, 2) is None


def test_a_node_that_cannot_be_read_is_left_out() -> None:
    objects = FailedObjects()

    assert objects.note(None, NotCounted(NodeName("n"), None), 0)
    assert objects.admit(e.NodeUpdated(node("n")), 1) is None


def test_an_error_of_a_decision_alone_is_not_passed_over() -> None:
    assert not FailedObjects().note(None, ERROR, 0)


def test_an_answer_that_raises_is_about_its_pod() -> None:
    bad = e.PodUpdated(pending(pod("bad")))

    assert failed(e.BindConfirmed(PodUid(bad.pod.pod.uid), NodeName("n"))).admit(bad, 1) is None


def test_an_app_ends_with_its_binds_answered_and_the_next_one_leaves_the_object_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = Scheduler.handle

    def planted(scheduler: Scheduler, event: e.Event, now_ns: int) -> Any:
        if isinstance(event, e.PodUpdated) and event.pod.pod.name == "bad":
            raise ERROR
        return handle(scheduler, event, now_ns)

    monkeypatch.setattr(Scheduler, "handle", planted)

    async def scenario() -> None:
        world = World()
        put_policies(world, test=PLAIN)
        world.add_node("a")
        world.add_pod("good")
        app = app_on(world, world.transport())
        run = asyncio.ensure_future(app.run())
        await until(lambda: world.node_of("good"), "the first pod to be bound")
        world.add_pod("bad")
        assert await run is ExitReason.STOPPED
        assert app.rereads
        assert not app.binder.in_flight

        app.failed_objects.begin()
        world.add_pod("better")
        app = app_on(world, world.transport(), failed_objects=app.failed_objects)
        run = asyncio.ensure_future(app.run())
        await until(lambda: world.node_of("better"), "another pod to be bound")
        assert world.node_of("bad") is None
        app.request_stop()
        await run
        assert not app.rereads

    on_virtual_time(scenario)


def test_the_program_goes_on_with_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    codes = [None, None, 3]

    async def run_once(_settings: object, objects: object, _stop_requested: object) -> int | None:
        given.append(objects)
        return codes[len(given) - 1]

    monkeypatch.setattr(program, "_run_once", run_once)
    settings: Any = None

    assert asyncio.run(program._run(settings)) == 3
    assert given == [given[0]] * 3


def test_a_pending_pod_is_told_for_how_long_it_is_left_out_after_each_failure() -> None:
    bad, objects, now_ns = e.PodUpdated(pending(pod("bad"))), FailedObjects(), 0

    told = []
    for _ in range(3):
        assert objects.note(bad, ERROR, now_ns)
        objects.admit(bad, now_ns)
        objects.admit(bad, now_ns)
        told += [report.message for report in objects.take_reports({bad.pod.pod.scheduler})]
        now_ns += 5 * RETRY_NS

    spans = [message.partition(" is left out for ")[2].partition(",")[0] for message in told]
    assert spans == ["1h", "2h", "4h"]
