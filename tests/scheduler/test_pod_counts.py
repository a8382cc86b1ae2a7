"""`count(pods where ...)` over the whole cluster: a gate for groups, a limit per kind, a layer."""

from dataclasses import replace

import pytest

from policysched.evaluate.columns.pod_query import PodQuery
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler import events as e
from policysched.scheduler.pod_events import PodEvents
from tests.builders import node, pending, placed, pod
from tests.scheduler.rig import Rig

GATE = """\
policy test version 1
input minimum: int = pod.labels["minAvailable"] default 1 invalid default
let members: int = count(pods where other.labels["podGroup"] == pod.labels["podGroup"] and other.namespace == pod.namespace)
filter gate when has pod.labels["podGroup"]
  require members >= minimum says "less than minAvailable: {members} of {minimum}"
filter node_resources_fit
preemption never
"""
ONE_AT_A_TIME = """\
policy test version 1
filter turns when pod.labels["role"] else "" == "migration"
  require count(pods where other.labels["role"] == "migration" and other.priority >= pod.priority) <= 1
  says "another migration is under way"
preemption never
"""
LAYERED = """\
policy test version 1
layer crowded when count(pods where other.namespace == pod.namespace) > 2 {
  filter gold require pod.labels["tier"] else "" == "gold"
}
preemption never
"""


def member(name: str, least: int = 3, **more: str) -> Pod:
    return pod(name, labels={"podGroup": "g", "minAvailable": str(least)}, **more)


def test_members_wait_until_enough_exist_and_are_then_all_placed() -> None:
    rig = Rig(GATE, node("a", cpu="100"))

    rig.observe(member("first"), member("second"))
    rig.settle()
    assert rig.placements() == {}
    assert rig.pending_message("first") == "0/1 nodes are available: 1 less than minAvailable: 2 of 3."
    rig.observe(member("third"))
    rig.pass_time(30)

    assert rig.placements() == {"first": "a", "second": "a", "third": "a"}


def test_members_that_terminate_or_are_in_another_namespace_do_not_count() -> None:
    rig = Rig(GATE, node("a", cpu="100"))
    leaving = replace(placed(member("leaving"), "a"), deleting=True)

    rig.observe(member("first"), member("second"), member("elsewhere", namespace="other"), leaving)
    rig.pass_time(30)

    assert rig.placements() == {}


def test_finished_members_count_until_deleted_if_all_pods_count() -> None:
    rig = Rig(GATE.replace("count(pods", "count(all pods"), node("a", cpu="100"))
    done = replace(placed(member("done"), "a"), phase="Succeeded")
    rig.observe(done, replace(placed(member("leaving"), "a"), deleting=True))

    rig.observe(member("first"))
    rig.pass_time(30)
    rig.confirm_binds()
    rig.handle(e.PodDeleted(done.pod.uid), e.PodDeleted(member("leaving").uid))
    rig.observe(member("late"))
    rig.pass_time(30)

    assert rig.placements() == {"first": "a"}
    assert rig.pending_message("late") == "0/1 nodes are available: 1 less than minAvailable: 2 of 3."


def test_a_finished_pod_requeues_pods_that_wait_for_a_number_of_finished_ones() -> None:
    text = GATE.replace("count(pods", "count(all pods").replace(">= minimum", "< minimum")
    rig = Rig(text, node("a", cpu="100"), *(placed(member(f"old-{n}"), "a") for n in range(3)))
    rig.observe(member("late", least=4))
    rig.settle()
    before = rig.placements()

    rig.observe(replace(placed(member("old-0"), "a"), phase="Failed"))
    rig.settle()
    finished = rig.placements()
    rig.handle(e.PodDeleted(member("old-0").uid))
    rig.pass_time(30)

    assert (before, finished) == ({}, {})
    assert rig.placements() == {"late": "a"}


def test_members_that_another_scheduler_placed_count() -> None:
    rig = Rig(GATE, node("a", cpu="100"))

    rig.observe(member("first"), placed(member("old"), "a"), pending(member("foreign", scheduler="else")))
    rig.pass_time(30)

    assert rig.placements() == {"first": "a"}


def test_a_pod_that_becomes_a_member_requeues_the_others() -> None:
    rig = Rig(GATE, node("a", cpu="100"), pending(pod("late", scheduler="else")))
    rig.observe(member("first"), member("second"))
    rig.settle()

    rig.observe(pending(replace(member("late", scheduler="else"), uid=pod("late").uid)))
    rig.pass_time(30)

    assert rig.placements() == {"first": "a", "second": "a"}


def test_a_deleted_pod_frees_a_slot_for_a_waiting_pod() -> None:
    rig = Rig(ONE_AT_A_TIME, node("a"), placed(pod("one", labels={"role": "migration"}), "a"))
    rig.observe(pod("two", labels={"role": "migration"}))
    rig.settle()
    assert rig.pending_message("two") == "0/1 nodes are available: 1 another migration is under way."

    rig.observe(replace(placed(pod("one", labels={"role": "migration"}), "a"), deleting=True))
    rig.pass_time(30)

    assert rig.placements() == {"two": "a"}


def test_a_layer_that_depends_on_a_count_comes_and_goes() -> None:
    others = [placed(pod(name), "a") for name in ("x", "y")]
    rig = Rig(LAYERED, node("a", cpu="100"), *others)
    rig.observe(pod("plain"))
    rig.settle()
    assert rig.pending_message("plain") == "0/1 nodes are available: 1 node(s) didn't satisfy rule gold."

    rig.observe(replace(others[0], phase="Succeeded"))
    rig.pass_time(30)

    assert rig.placements() == {"plain": "a"}


def test_a_pod_is_evaluated_when_it_changes_and_not_at_every_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks, head_of = [], PodQuery.group_key
    monkeypatch.setattr(
        PodQuery, "group_key", lambda self, counted: looks.append(counted.pod.name) or head_of(self, counted)
    )
    old = [placed(pod(f"old-{index}"), f"old-{index % 3}") for index in range(300)]
    rig = Rig(GATE, node("a", cpu="100"), *old)

    for index in range(40):
        rig.observe(member(f"m{index}", least=1))
        rig.settle()

    assert len(rig.placements()) == 40
    assert len(looks) == 300 + 40


def test_parked_pods_that_are_never_requeued_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    updated = PodEvents.updated

    def without_requeue(
        self: PodEvents, observed: ObservedPod, now_ns: int, **more: bool
    ) -> list[ObservedPod]:
        requeue = self._core.queue.requeue
        monkeypatch.setattr(self._core.queue, "requeue", lambda *_, **__: None)
        group_pods = updated(self, observed, now_ns, **more)
        monkeypatch.setattr(self._core.queue, "requeue", requeue)
        return group_pods

    monkeypatch.setattr(PodEvents, "updated", without_requeue)

    with pytest.raises(AssertionError):
        test_members_wait_until_enough_exist_and_are_then_all_placed()
