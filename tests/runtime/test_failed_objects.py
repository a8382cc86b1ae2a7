"""What is applied instead of the event of an object that raised."""

import asyncio
from typing import Any

import pytest

from policysched.cluster.metric_samples import MetricSamples
from policysched.daemon.failed_objects import (
    NAMESPACE_FAILURES_MAX,
    RETRY_NS,
    FailedObjects,
)
from policysched.daemon.process import ExitReason
from policysched.evaluate import NotCounted
from policysched.lang.check.bundle import PolicyBundle
from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName, PodUid
from policysched.scheduler import events as e
from policysched.scheduler.blame import RaisedFor, change_id, pod_id, text_id
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.policies.policy_status import suspension
from policysched.scheduler.policies.rejection_message import rejection_message
from policysched.scheduler.policy_reload import PolicyReload
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.scheduler import Scheduler
from tests.builders import finished, namespace, node, pending, placed, pod
from tests.kube.world import World, on_virtual_time, until
from tests.runtime.test_scheduler_app import PLAIN, app_on, put_policies
from tests.scheduler.rig import FIT, bundle
from tests.scheduler.test_team_policies import TEAM

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


@pytest.mark.parametrize("suspended_too", [False, True], ids=["the text", "also when it is suspended"])
def test_a_policy_that_raises_when_it_takes_effect_does_not_run_and_others_do(
    monkeypatch: pytest.MonkeyPatch, suspended_too: bool
) -> None:
    activate = PolicyReload._activate

    def planted(reload: PolicyReload, program: Program, *arguments: Any, **more: Any) -> None:
        if program.name == "bad" and (suspended_too or not program.removed):
            raise ERROR
        activate(reload, program, *arguments, **more)

    monkeypatch.setattr(PolicyReload, "_activate", planted)

    async def scenario() -> None:
        world = World()
        put_policies(world, test=PLAIN, bad=PLAIN.replace("policy test", "policy bad"))
        world.add_node("a")
        world.add_pod("good")
        world.add_pod("told", scheduler="bad")
        app = app_on(world, world.transport())
        assert await app.run() is ExitReason.STOPPED
        assert app.rereads
        if suspended_too:
            app = app_on(world, world.transport(), failed_objects=app.failed_objects)
            assert await app.run() is ExitReason.STOPPED
            assert app.rereads

        app = app_on(world, world.transport(), failed_objects=app.failed_objects)
        run = asyncio.ensure_future(app.run())
        await until(lambda: world.node_of("good"), "the pod of the other policy to be bound")
        if not suspended_too:
            await until(
                lambda: "raised an exception" in message_of(world, "told"), "the other pod to be told"
            )
        assert {status.name: status.phase for status in app.scheduler.policies()} == {
            "test": "active",
            "bad": "rejected" if suspended_too else "suspended",
        }
        app.request_stop()
        await run

    on_virtual_time(scenario)


def message_of(world: World, pod: str) -> str:
    """Of the condition PodScheduled."""
    conditions = world.pod(pod).get("status", {}).get("conditions", [])
    return next((each.get("message", "") for each in conditions if each["type"] == "PodScheduled"), "")


def edit_policy(world: World, text: str) -> None:
    policies = world.local.get("configmaps", "kube-system", "policies")
    assert policies is not None
    world.local.update("configmaps", policies, lambda current: current | {"data": {"test.policy": text}})


@pytest.mark.parametrize("saved", [True, False], ids=["saved", "not saved"])
@pytest.mark.parametrize("edited", [True, False], ids=["edited", "after an hour"])
def test_an_only_policy_whose_texts_raise_is_suspended(
    monkeypatch: pytest.MonkeyPatch, saved: bool, edited: bool
) -> None:
    activate, raises = PolicyReload._activate, True

    def planted(reload: PolicyReload, program: Program, *arguments: Any, **more: Any) -> None:
        if raises and "node_ports" not in program.text and not program.removed:
            raise OverflowError("the label of a pod")
        activate(reload, program, *arguments, **more)

    monkeypatch.setattr(PolicyReload, "_activate", planted)

    async def scenario() -> None:
        nonlocal raises
        world = World()
        put_policies(world, test=FIT)
        if saved:
            data = {"test.policy": FIT}
            kept = {"metadata": {"name": "policies-last-good"}, "data": data}
            world.local.create("configmaps", "kube-system", kept)
        world.add_node("a")
        world.add_pod("first")
        app = app_on(world, world.transport())
        assert await app.run() is ExitReason.STOPPED
        assert app.rereads

        app = app_on(world, world.transport(), failed_objects=app.failed_objects)
        run = asyncio.ensure_future(app.run())
        await until(lambda: "raised an exception" in message_of(world, "first"), "the pod to be told")
        assert "label of a pod" not in message_of(world, "first")
        assert [status.phase for status in app.scheduler.policies()] == ["suspended"]
        assert suspension(app.scheduler.policies()).startswith("no text of test can run")
        await until(
            lambda: (
                {"PolicySuspended", "PolicyRejected"}
                <= {event["reason"] for event in world.local.list("events")}
            ),
            "events",
        )

        if edited:
            edit_policy(world, "policy test version 1\nno rule\n")
            await asyncio.sleep(20.0)
            assert [status.phase for status in app.scheduler.policies()] == ["suspended"]
            edit_policy(world, f"{FIT}filter node_ports\n")
        else:
            await asyncio.sleep(RETRY_NS * 1e-9 - 60.0)
            assert world.node_of("first") is None
            raises = False
        await until(lambda: world.node_of("first"), "a text that does not raise", within_s=300.0)
        assert suspension(app.scheduler.policies()) == ""
        app.request_stop()
        await run

    on_virtual_time(scenario)


def test_a_timer_that_raises_ends_the_app_and_the_next_one_leaves_its_pod_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expired = PodEnqueuer._rekey_expired

    def planted(enqueuer: PodEnqueuer, pod: PendingPod, now_ns: int) -> None:
        if pod.pod.name == "bad":
            raise ERROR
        expired(enqueuer, pod, now_ns)

    monkeypatch.setattr(PodEnqueuer, "_rekey_expired", planted)

    async def scenario() -> None:
        world = World()
        put_policies(world, test=PLAIN + "queue by pod.waited > 5s desc, pod.priority\n")
        world.add_node("a", cpu="4")
        world.add_pod("bad", cpu="9")
        app = app_on(world, world.transport())
        assert await app.run() is ExitReason.STOPPED
        assert app.rereads
        assert app.failed_objects.counts(world.now_ns()) == {"Pod": 1}

        world.add_pod("good")
        app = app_on(world, world.transport(), failed_objects=app.failed_objects)
        run = asyncio.ensure_future(app.run())
        await until(lambda: world.node_of("good"), "the other pod to be bound")
        await asyncio.sleep(60.0)
        assert not app.rereads
        app.request_stop()
        await run

    on_virtual_time(scenario)


def test_what_raises_between_two_steps_has_its_pod_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = Scheduler.ready

    def planted(scheduler: Scheduler, now_ns: int) -> bool:
        for bad in (known for known in scheduler.cache.pods.values() if known.pod.name == "bad"):
            raise RaisedFor(pod_id(bad.pod)) from ERROR
        return ready(scheduler, now_ns)

    monkeypatch.setattr(Scheduler, "ready", planted)

    async def scenario() -> None:
        world = World()
        put_policies(world, test=PLAIN)
        world.add_node("a", cpu="4")
        world.add_pod("bad")
        app = app_on(world, world.transport())
        assert await app.run() is ExitReason.STOPPED
        assert app.rereads
        assert app.failed_objects.counts(world.now_ns()) == {"Pod": 1}

    on_virtual_time(scenario)


def texts_of(event: e.Event | None) -> list[bool]:
    """Whether each text is valid."""
    assert isinstance(event, e.PoliciesUpdated)
    bundles = [bundle for bundle in (event.bundle, event.last_good) if bundle is not None]
    offered = [source.program for bundle in bundles for source in bundle.sources.values()]
    programs = [*offered, *event.fallbacks.values()]
    return [program is not None and not program.removed for program in programs]


def team_texts(text: str) -> e.PoliciesUpdated:
    """The operator's policy, and the text of a team: offered, saved, and as a fallback."""
    team = bundle({"ml/a.policy": text})
    program = team.sources["ml/a.policy"].program
    assert program is not None
    both = PolicyBundle({**bundle({"main.policy": FIT}).sources, **team.sources})
    return e.PoliciesUpdated(both, "1", team, fallbacks={"ml-a": program})


def test_the_text_of_a_team_that_raised_is_invalid_and_its_next_one_is_tried_at_once() -> None:
    offered = team_texts(TEAM)
    program = offered.fallbacks["ml-a"]
    objects = FailedObjects({"ml-a": "ml"}.get)
    cause = RaisedFor(text_id(program, "ml"))
    cause.__cause__ = ERROR

    assert objects.note(None, cause, 0)

    admitted = objects.admit(offered, 1)
    assert texts_of(admitted) == [True, False, False, False]
    assert isinstance(admitted, e.PoliciesUpdated) and admitted.bundle is not None
    assert "OverflowError: planted" in rejection_message(admitted.bundle.sources["ml/a.policy"])
    edited = team_texts(f"{TEAM}filter node_unschedulable\n")
    assert texts_of(objects.admit(edited, 1)) == [True, True, True, True]
    assert texts_of(objects.admit(offered, RETRY_NS + 1)) == [True, True, True, True]


def test_the_last_known_good_text_runs_in_place_of_one_that_raised() -> None:
    edited = bundle({"main.policy": f"{FIT}filter node_ports\n"})
    program, good = edited.sources["main.policy"].program, bundle({"test.policy": FIT})
    assert program is not None
    objects = FailedObjects()
    assert objects.note(None, RaisedFor(text_id(program, None)), 0)

    assert texts_of(objects.admit(e.PoliciesUpdated(edited, "1", good), 1)) == [False, True]
    assert texts_of(objects.admit(e.PoliciesUpdated(edited, "1", None), 1)) == [False, False]


def test_a_team_whose_texts_raise_again_and_again_is_left_out_as_a_whole() -> None:
    objects = FailedObjects({"ml-a": "ml"}.get)
    for number in range(NAMESPACE_FAILURES_MAX):
        edited = team_texts(f"{TEAM}filter x{number} require node.ready\n")
        assert objects.note(None, RaisedFor(text_id(edited.fallbacks["ml-a"], "ml")), 0)

    assert texts_of(objects.admit(team_texts(TEAM), 1)) == [True, False, False, False]
    assert objects.admit(e.PodUpdated(pending(pod("p", namespace="ml"))), 1) is None


def test_samples_that_raised_count_as_missing() -> None:
    arrived = e.SamplesArrived("test", "load", MetricSamples({}, 0))

    assert failed(arrived).admit(arrived, 1) == e.SamplesFailed("test", "load")


def test_a_change_of_no_object_counts_for_its_namespace() -> None:
    objects = FailedObjects()
    for _ in range(NAMESPACE_FAILURES_MAX):
        assert objects.note(None, RaisedFor(change_id("tenant")), 0)

    assert objects.counts(1) == {"all of a namespace": 1}


def test_an_answer_that_raises_counts_for_the_namespace_of_its_pod() -> None:
    objects = FailedObjects()
    for number in range(NAMESPACE_FAILURES_MAX):
        bad = pending(pod(f"bad-{number}", namespace="tenant"))
        answer = e.BindConfirmed(bad.pod.uid, NodeName("n"))
        assert objects.note(answer, ERROR, 0, {bad.pod.uid: bad})

    assert objects.admit(e.PodUpdated(pending(pod("new", namespace="tenant"))), 1) is None


def test_a_pod_that_was_deleted_while_the_cluster_was_read_again_keeps_no_node_out() -> None:
    bad, its_node = e.PodUpdated(placed(pod("bad"), "n")), e.NodeUpdated(node("n"))
    objects = failed(bad, bad)

    assert objects.admit(its_node, 1) is None
    objects.admit(e.Synced(), 1)

    assert objects.take_due(2 * MINUTE_NS) == [its_node]
    assert objects.counts(1) == {}


def test_what_failed_is_forgotten_some_time_after_it_was_left_out() -> None:
    objects = failed(e.NamespaceUpdated(namespace("gone")))

    objects.take_due(RETRY_NS + MINUTE_NS)
    assert objects._failures, "how often it failed counts if it fails again"
    objects.take_due(2 * RETRY_NS + MINUTE_NS)
    assert not objects._failures


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
