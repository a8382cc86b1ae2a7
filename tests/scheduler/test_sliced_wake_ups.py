"""An event that helps many parked groups: they are opened in slices, in the order of the queue, and none is left out."""

from collections.abc import Callable
from typing import Any

import pytest

from policysched.scheduler import events as e
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.queue.parked_entries import ParkedEntries
from policysched.scheduler.queue.sliced_wake_ups import WAKE_UPS_PER_SLICE
from tests.builders import node, pod
from tests.scheduler.rig import Rig
from tests.scheduler.test_pauses import decide_until_pause, gang, plain
from tests.scheduler.test_pauses import rig as pausing_rig

MANY = 10 * WAKE_UPS_PER_SLICE
RANKED = """\
policy {name} version 1
input rank: int = pod.labels["rank"] default 0 invalid default
queue by rank desc, pod.created asc
filter node_resources_fit
preemption never
"""
POLICY = RANKED.format(name="test")
BY_SHARE = """\
policy test version 1
queue by namespace.share.cpu, pod.name
filter node_resources_fit
preemption never
"""
WAITED = POLICY + 'filter waited require pod.waited > 30m or node.name == "b"\n'
TWO = {"test.policy": POLICY, "other.policy": RANKED.format(name="other")}
NO_BACKOFF = SchedulerLimits(backoff_initial_s=0.001, backoff_max_s=0.001)


def waiting(policies: str | dict[str, str] = POLICY, **more: Any) -> Rig:
    """Unequal pods that no node takes; the last one is the first of the order."""
    rig = Rig(policies, node("a", cpu="1"), limits=NO_BACKOFF)
    for number in range(MANY):
        rig.observe(pod(f"p{number}", cpu=str(10 + number), labels={"rank": str(number)}, **more))
    rig.settle()
    rig.pass_time(1)
    return rig


class Opened:
    """How many parked groups each call of the scheduler opens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: list[int] = []
        unblock = ParkedEntries._unblock

        def counting(*of: Any) -> None:
            self.counts[-1] += 1
            unblock(*of)

        monkeypatch.setattr(ParkedEntries, "_unblock", counting)

    def of(self, rig: Rig, call: Callable[[], object]) -> list[int]:
        self.counts = [0]
        call()
        while rig.scheduler.ready(rig.now_ns):
            self.counts.append(0)
            rig.commands += rig.scheduler.decide(rig.now_ns)
        return self.counts


def attempted_pods(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    attempted: list[str] = []
    attempt_pod = PodAttempts.attempt_pod

    def noting(self: Any, entry: Any, now_ns: int) -> Any:
        attempted.append(entry.pod.name)
        return attempt_pod(self, entry, now_ns)

    monkeypatch.setattr(PodAttempts, "attempt_pod", noting)
    return attempted


def test_an_event_that_helps_many_parked_pods_opens_a_slice_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, opened = waiting(), Opened(monkeypatch)

    counts = opened.of(rig, lambda: rig.observe(node("a", cpu="2")))

    assert counts[0] == 0
    assert max(counts) == WAKE_UPS_PER_SLICE
    assert sum(counts) == MANY


def test_an_event_that_helps_few_opens_them_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, opened = Rig(POLICY, node("a", cpu="1"), limits=NO_BACKOFF), Opened(monkeypatch)
    rig.observe(pod("p", cpu="10"), pod("q", cpu="11"))
    rig.settle()

    assert opened.of(rig, lambda: rig.observe(node("a", cpu="2")))[0] == 2


def test_all_are_attempted_in_the_order_of_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = waiting()
    attempted = attempted_pods(monkeypatch)

    rig.observe(node("a", cpu="2"))
    rig.settle()

    assert attempted == [f"p{number}" for number in reversed(range(MANY))]


def test_those_with_the_same_event_again_are_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, opened = waiting(), Opened(monkeypatch)

    def twice() -> None:
        rig.observe(node("a", cpu="2"))
        rig.observe(node("a", cpu="3"))

    assert sum(opened.of(rig, twice)) == MANY


def test_a_pod_waits_for_those_ahead_of_it_that_are_not_woken_yet() -> None:
    rig = waiting()

    rig.observe(node("a", cpu="10"), pod("last", cpu="1", labels={"rank": "-1"}))
    rig.settle()

    assert rig.bind_order() == ["p0"]


def test_a_pod_of_another_policy_is_decided_between_two_slices() -> None:
    rig = waiting(TWO)
    rig.observe(node("a", cpu="2"), pod("friend", cpu="1", scheduler="other"))

    for _ in range(4):
        rig.commands += rig.scheduler.decide(rig.now_ns)

    assert "friend" in rig.placements()
    assert len(rig.scheduler.core.queue._groups.sliced) > MANY / 2


def test_a_pod_of_a_class_that_is_to_be_woken_is_attempted() -> None:
    """Its verdict is the one of before the event."""
    rig = waiting()

    rig.observe(node("a", cpu="10"), pod("equal", cpu="10", labels={"rank": "0"}))
    while len(rig.scheduler.core.queue._groups.sliced) == 0:
        rig.commands += rig.scheduler.decide(rig.now_ns)

    queue = rig.scheduler.core.queue
    due = [group for group in queue.parked_groups() if group in queue._groups.sliced]
    assert due
    assert all(queue.blocked_group(group.equivalence_key) is None for group in due)


def test_a_pod_that_is_to_be_woken_and_is_deleted_or_changes_is_not_lost() -> None:
    rig = waiting()

    rig.observe(node("a", cpu="10"))
    rig.handle(e.PodDeleted(pod("p0").uid))
    rig.observe(pod("p1", cpu="10", labels={"rank": "5000"}))
    rig.settle()

    assert rig.bind_order() == ["p1"]
    assert rig.scheduler.check() == []


def test_a_new_text_drops_what_is_to_be_woken() -> None:
    rig = waiting()

    rig.observe(node("a", cpu="10"))
    rig.apply_policies(POLICY.replace("rank desc", "rank asc"))
    rig.settle()

    assert rig.bind_order() == ["p0"]
    assert len(rig.scheduler.core.queue._groups.sliced) == 0


def test_those_of_a_new_text_are_opened_in_its_order() -> None:
    """Shares of namespaces change by themselves, so their queue is not the one of ranks."""
    rig = waiting()
    rig.observe(node("a", cpu="2"))
    rig.settle()
    rig.pass_time(1)
    rig.apply_policies(BY_SHARE)
    rig.settle()
    rig.pass_time(1)
    rig.observe(node("b", cpu="5"))
    rig.observe(pod("used", cpu="4"))
    rig.settle()
    rig.confirm_binds()
    rig.settle()
    rig.observe(pod("a", cpu="8"), pod("z", cpu="8", namespace="quiet"))
    rig.settle()
    rig.pass_time(1)

    rig.observe(node("c", cpu="9"))
    rig.settle()

    assert rig.bind_order() == ["used", "z"]


def test_a_group_that_two_events_help_has_one_representative(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(POLICY, node("a", cpu="1"), limits=NO_BACKOFF)
    rig.observe(*[pod(f"p{number}", cpu="10") for number in range(4)])
    rig.settle()
    rig.pass_time(1)
    opened, queue = Opened(monkeypatch), rig.scheduler.core.queue
    (group,) = queue.parked_groups()
    assert len(group.requeue_events) > 1

    opened.of(rig, lambda: queue.requeue(group.requeue_events, rig.now_ns))

    assert sum(opened.counts) == 1


def test_pods_are_woken_in_slices_in_the_pause_of_a_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, opened = pausing_rig(*[node(f"n{index}", cpu="2") for index in range(6)]), Opened(monkeypatch)
    rig.observe(*[plain(f"p{number}", cpu=str(10 + number)) for number in range(MANY)])
    rig.settle()
    rig.pass_time(20)
    rig.observe(*gang(8))
    decide_until_pause(rig, 3)

    counts = opened.of(rig, lambda: rig.observe(node("large", cpu="10"), plain("behind", cpu="8")))

    assert max(counts) == WAKE_UPS_PER_SLICE
    assert sum(counts) >= MANY
    assert rig.placements()["p0"] == "large"
    assert "behind" not in rig.placements()


def test_verdicts_that_expire_together_open_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, opened = waiting(WAITED), Opened(monkeypatch)
    rig.now_ns += 3_600 * 10**9

    counts = opened.of(rig, lambda: None)

    assert max(counts) <= WAKE_UPS_PER_SLICE
    assert sum(counts) == MANY
