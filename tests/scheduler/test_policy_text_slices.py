"""A new text of a policy with many pods: they are enqueued again in slices, and none of them is attempted before the end."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from policysched.recording.reader import open_recording
from policysched.recording.replay import replay
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.policy_membership import PolicyMembership
from policysched.scheduler.policy_text_events import PolicyTextEvents
from policysched.scheduler.queue.entries import PendingPod, QueueState
from policysched.scheduler.queue.gang_registry import POD_GROUP_CHANGE, POLICY_CHANGE, QueuedGang
from policysched.scheduler.queue.held_policies import HeldForReason
from policysched.scheduler.queue.parked_groups import ParkedGroups
from policysched.scheduler.queue.sliced_wake_ups import WAKE_UPS_PER_SLICE
from policysched.scheduler.sliced_changes import PODS_PER_SLICE
from tests.builders import node, placed, pod
from tests.recording.recorded import POLICY, Recorded
from tests.scheduler.calls import count_calls
from tests.scheduler.rig import FIT, Rig, bundle
from tests.scheduler.test_pod_groups import POLICY as POD_GROUPS
from tests.scheduler.test_pod_groups import gang_group, member, rig_with

MANY = 6 * PODS_PER_SLICE
GANGS = """\
policy test version 1
input group: string = pod.labels["group"] optional
gang by group {{ min = {least} {more} }}
filter node_resources_fit
preemption never
"""
OTHER = FIT.replace("policy test", "policy other")
BY_RANK = FIT + 'input rank: int = pod.labels["rank"] default 0 invalid default\nqueue by rank {direction}\n'
LARGE = node("a", cpu="1000", pods="1000")


def gangs(least: int, more: str = "") -> str:
    return GANGS.format(least=least, more=more)


def waiting(policy: str, group_size: int = 1, count: int = MANY) -> Rig:
    """Many pods that no node takes."""
    rig = Rig({"main.policy": policy, "other.policy": OTHER})
    rig.observe(
        *[
            pod(f"p{number}", labels={"group": f"g{number // group_size}", "rank": str(number)})
            for number in range(count)
        ]
    )
    rig.settle()
    return rig


def left(rig: Rig) -> int:
    return len(rig.scheduler._policy_text_events.slices.left(("test", "")))


def edit(rig: Rig, policy: str) -> None:
    """Until the new text has reached a first slice of the pods."""
    rig.apply_policies({"main.policy": policy, "other.policy": OTHER})
    decide_until(rig, lambda: bool(left(rig)))


def decide_until(rig: Rig, is_reached: Callable[[], bool]) -> None:
    while not is_reached():
        assert rig.scheduler.ready(rig.now_ns), "nothing is left to decide"
        rig.commands += rig.scheduler.decide(rig.now_ns)
        rig.check_invariants()


def test_a_new_text_looks_at_no_pod_that_it_has_nothing_to_do_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = waiting(FIT)
    full = node("a", cpu="1", pods=str(MANY))
    rig.observe(full, *[placed(pod(f"old{number}"), "a") for number in range(MANY)])
    rig.settle()

    def takes_over() -> None:
        edit(rig, FIT + "filter small require node.pods < 1000\n")

    with monkeypatch.context() as patched:
        counted = count_calls(patched, PolicyMembership, "count_in_gang", takes_over)
    assert counted == 0, "without gangs"

    rig.settle()
    costs = count_calls(monkeypatch, PolicyTextEvents, "_is_slow", lambda: edit(rig, FIT))
    assert costs == 0, "a text that is not slow for any pod"


@pytest.mark.parametrize(
    ("policy", "group_size"), [(FIT, 1), (gangs(3), 3), (gangs(1), MANY), (gangs(3, "mode = gate"), 3)]
)
def test_a_new_text_reaches_many_pods_in_slices(
    monkeypatch: pytest.MonkeyPatch, policy: str, group_size: int
) -> None:
    rig, counts = waiting(policy, group_size), list[int]()
    enqueue_many, refresh_gang = PodEnqueuer.enqueue_many, PodEnqueuer.refresh_gang
    released = list[int]()

    def counting(enqueuer: PodEnqueuer, policy: str, pods: Iterable[PendingPod], now_ns: int) -> None:
        pods = list(pods)
        counts[-1] += len(pods)
        enqueue_many(enqueuer, policy, pods, now_ns)

    def counting_gangs(enqueuer: PodEnqueuer, gang: QueuedGang, now_ns: int, event: str) -> None:
        released[-1] += event == "PolicyChange" and not gang.held
        refresh_gang(enqueuer, gang, now_ns, event)

    monkeypatch.setattr(PodEnqueuer, "enqueue_many", counting)
    monkeypatch.setattr(PodEnqueuer, "refresh_gang", counting_gangs)
    counts.append(0)
    released.append(0)
    rig.apply_policies({"main.policy": policy + "filter node_unschedulable\n", "other.policy": OTHER})
    while rig.scheduler.ready(rig.now_ns):
        counts.append(0)
        released.append(0)
        rig.commands += rig.scheduler.decide(rig.now_ns)
        rig.check_invariants()

    assert sum(counts) == MANY
    assert max(counts) <= PODS_PER_SLICE
    assert sum(released) == (0 if policy == FIT else MANY // group_size)
    assert max(released) <= PODS_PER_SLICE


def test_pods_of_other_policies_are_decided_between_the_slices() -> None:
    rig = waiting(FIT)
    edit(rig, FIT + "filter node_unschedulable\n")

    rig.observe(LARGE, pod("friend", scheduler="other"))
    decide_until(rig, lambda: "friend" in rig.placements())

    assert left(rig)
    assert rig.placements().keys() == {"friend"}
    rig.settle()
    assert len(rig.placements()) == MANY + 1


def check_order() -> None:
    rig = waiting(BY_RANK.format(direction="asc"))

    edit(rig, BY_RANK.format(direction="desc"))
    rig.observe(node("a", cpu="1000", pods="3"))
    rig.settle()

    assert rig.bind_order() == [f"p{MANY - 1}", f"p{MANY - 2}", f"p{MANY - 3}"]


def test_no_pod_is_attempted_before_the_text_has_reached_all() -> None:
    check_order()


def test_a_planted_bug_that_attempts_pods_between_the_slices_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HeldForReason, "add", set.add)
    with pytest.raises(AssertionError):
        check_order()


def check_gangs(size: int) -> None:
    """Of the size that the first text wants and the last one, but not the one between."""
    rig = waiting(gangs(size), size, count=4 * size)

    edit(rig, gangs(size + 1))
    rig.observe(LARGE)
    rig.settle()
    too_few = rig.placements()
    rig.apply_policies({"main.policy": gangs(size), "other.policy": OTHER})
    rig.pass_time(20)

    assert too_few == {}
    assert len(rig.placements()) == 4 * size
    assert not any("disagree" in event.message for event in rig.of(c.ReportPodEvent))


@pytest.mark.parametrize("size", [12, 2 * PODS_PER_SLICE])
def test_no_gang_is_bound_that_the_text_has_reached_in_part(size: int) -> None:
    check_gangs(size)


def check_deadline() -> None:
    """The gang is complete and has one more attempt when its time is over."""
    timeout = "timeout = 5s  on_timeout = fail"
    rig = waiting(gangs(MANY, timeout), MANY)

    edit(rig, gangs(MANY, timeout) + "filter node_unschedulable\n")
    rig.now_ns += 6 * 10**9
    rig.observe(LARGE)
    rig.settle()

    assert len(rig.placements()) == MANY


def test_a_gang_that_the_text_has_reached_in_part_does_not_time_out() -> None:
    check_deadline()


def test_a_gang_that_times_out_in_part_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueuedGang, "held", property(lambda _: False))
    with pytest.raises(AssertionError):
        check_deadline()


@pytest.mark.parametrize(("policy", "size"), [(FIT, 1), (gangs(2), 4)])
def test_pods_that_go_or_change_between_two_slices(policy: str, size: int) -> None:
    rig = waiting(policy, size)

    edit(rig, policy + "filter node_unschedulable\n")
    rig.handle(*[e.PodDeleted(pod(f"p{number}").uid) for number in range(0, MANY, 2)])
    changed = {"group": f"g{(MANY - 1) // size}", "changed": "yes"}
    rig.observe(pod(f"p{MANY - 1}", labels=changed), pod("late", labels=changed))
    rig.observe(LARGE)
    rig.pass_time(20)

    assert len(rig.placements()) == MANY // 2 + 1


@pytest.mark.parametrize(("policy", "size"), [(FIT, 1), (gangs(4), 4)])
def test_a_second_text_takes_the_place_of_one_that_has_not_reached_all(policy: str, size: int) -> None:
    rig = waiting(policy, size)

    edit(rig, policy + 'filter gold require (pod.labels["tier"] else "") == "gold"\n')
    first_left = left(rig)
    rig.observe(LARGE)
    rig.apply_policies({"main.policy": policy + "filter node_unschedulable\n", "other.policy": OTHER})
    rig.pass_time(20)

    assert first_left > PODS_PER_SLICE
    assert len(rig.placements()) == MANY


def test_a_change_of_a_pod_group_goes_on_under_a_new_text() -> None:
    """The text reaches the few pods that wait at once, the change also those that run: a pod of another scheduler, with
    which none of the group is placed."""
    rig = rig_with(e.PodGroupUpdated(gang_group(least=1)), cpu=str(MANY))
    rig.observe(*[member(f"m{number}", node="n0") for number in range(MANY)])
    rig.observe(*[member(f"w{number}") for number in range(4)])
    rig.settle()
    rig.apply_policies(POD_GROUPS + "filter node_unschedulable\n")
    while rig.scheduler._reload._in_preparation["test"].precomputed == {}:
        rig.commands += rig.scheduler.decide(rig.now_ns)

    rig.observe(member("other", scheduler="default-scheduler"))
    decide_until(rig, lambda: not rig.scheduler._reload.busy)
    is_sliced = bool(rig.scheduler._pod_group_events._applying)
    rig.observe(node("n1", cpu="1000", pods="1000"))
    rig.settle()

    assert is_sliced
    assert rig.placements() == {}
    rig.handle(e.PodDeleted(member("other").pod.uid))
    rig.pass_time(60)
    assert len(rig.placements()) == 4


def test_a_hold_that_ends_before_its_gang_forms_again_does_not_hold_it() -> None:
    rig = waiting(gangs(3), 3, count=3)
    registry, member = rig.scheduler.core.gangs, pod("p0").uid
    [gang] = registry
    terms, gang_id = gang.terms[member], gang.id
    gang.holds.add(POD_GROUP_CHANGE)

    registry.begin_replacing("test", {"default"})
    went_on = registry.add_placed(member, "test", terms).holds.copy()
    registry.begin_replacing("test", {"default"})
    registry.end_hold(gang_id, POD_GROUP_CHANGE)
    held = registry.add_placed(member, "test", terms).holds

    assert went_on == {POD_GROUP_CHANGE, POLICY_CHANGE}
    assert held == {POLICY_CHANGE}


def test_a_bind_that_is_refused_between_two_slices() -> None:
    rig = Rig({"main.policy": gangs(2), "other.policy": OTHER}, node("a", cpu="2"), limits=SchedulerLimits())
    rig.observe(*[pod(f"b{number}", cpu="1", labels={"group": "bound"}) for number in range(2)])
    rig.settle()
    rig.observe(*[pod(f"p{number}", cpu="1", labels={"group": f"g{number // 2}"}) for number in range(MANY)])
    rig.settle()

    edit(rig, gangs(2) + "filter node_unschedulable\n")
    first, second = rig.in_flight_binds()
    rig.handle(e.BindRefused(first.uid, "no"), e.BindConfirmed(second.uid, second.node))
    rig.pass_time(5)
    rig.observe(LARGE)
    rig.pass_time(60)

    assert len(rig.placements()) == MANY + 2


def test_pods_that_wait_for_the_text_say_so_and_are_counted() -> None:
    rig = waiting(FIT)

    edit(rig, FIT + "filter node_unschedulable\n")

    status = rig.scheduler.pending_pods.status(f"default/p{MANY - 1}")
    assert status is not None
    assert (status.state, status.message) == (
        "awaiting its policy",
        "policy test has a new text, which is applied to its pods",
    )
    assert rig.counts() == {"active": MANY}


def test_slices_are_part_of_a_recording(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, policies=("test", "other"))
    for _ in range(MANY):
        recorded.add_pod(cpu="9")
    while recorded.scheduler.ready(recorded.now_ns):
        recorded.decide()
    texts = {f"{name}.policy": POLICY.format(name=name) for name in ("test", "other")}
    texts["test.policy"] += 'filter silver require (node.labels["tier"] else "") != "gold"\n'
    recorded.handle(e.PoliciesUpdated(bundle(texts), resource_version="2"))
    between = 0
    while recorded.scheduler.ready(recorded.now_ns):
        recorded.decide()
        if recorded.scheduler._policy_text_events.slices.left(("test", "")) and between < 3:
            recorded.add_pod(scheduler="other")
            between += 1
    recorded.handle(e.NodeUpdated(node("b", cpu="4000", pods="1000")))
    while recorded.scheduler.ready(recorded.now_ns):
        recorded.decide()
    recorded.writer.write_all()

    report = replay(open_recording(tmp_path))

    assert between == 3
    assert (report.different, report.problems) == (0, [])
    assert report.decisions > 100


def test_a_policy_does_not_wait_for_all_pods_of_another_one() -> None:
    """Nobody pays for the slices of either, and they are of different teams."""
    rig = waiting(FIT, count=20 * PODS_PER_SLICE)
    rig.observe(*[pod(f"o{number}", scheduler="other") for number in range(2 * PODS_PER_SLICE)])
    rig.settle()
    change, changing = "filter node_unschedulable\n", rig.scheduler.core.changing_policies

    edit(rig, FIT + change)
    rig.apply_policies({"main.policy": FIT + change, "other.policy": OTHER + change})
    decide_until(rig, lambda: "other" in changing)
    decide_until(rig, lambda: "other" not in changing)

    assert left(rig)
    rig.settle()
    assert not changing & {"test", "other"}


# ── parked groups await the text before it takes over ────────────────────────────────────────────────────────────────


def parked(count: int = 4 * WAKE_UPS_PER_SLICE) -> Rig:
    """Unequal pods that no node takes."""
    rig = Rig({"main.policy": FIT, "other.policy": OTHER}, node("a", cpu="1"))
    rig.observe(*[pod(f"p{number}", cpu=str(10 + number)) for number in range(count)])
    rig.settle()
    return rig


def awaiting(rig: Rig) -> int:
    return sum(each.state is QueueState.AWAITING_POLICY for each in rig.scheduler.core.pods.values())


CHANGED = FIT + "filter node_unschedulable\n"


def test_many_parked_groups_are_dropped_in_slices_before_a_text_takes_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, dropped = parked(), list[int]()
    rig.apply_policies({"main.policy": CHANGED, "other.policy": OTHER})

    while not left(rig):
        decide = lambda: rig.commands.extend(rig.scheduler.decide(rig.now_ns))  # noqa: E731
        dropped.append(count_calls(monkeypatch, ParkedGroups, "_drop", decide))

    assert max(dropped) == WAKE_UPS_PER_SLICE
    assert sum(dropped) == 4 * WAKE_UPS_PER_SLICE


def test_a_text_that_is_replaced_before_it_takes_over_leaves_no_pod_behind() -> None:
    rig = parked()
    rig.apply_policies({"main.policy": CHANGED, "other.policy": OTHER})
    decide_until(rig, lambda: awaiting(rig) > 0)

    rig.apply_policies({"main.policy": FIT, "other.policy": OTHER})
    rig.observe(node("large", cpu="10"))
    rig.settle()

    assert rig.placements() == {"p0": "large"}
    assert awaiting(rig) == 0


def test_no_pod_is_placed_while_others_of_its_policy_await_the_text() -> None:
    rig = parked()
    rig.apply_policies({"main.policy": CHANGED, "other.policy": OTHER})
    decide_until(rig, lambda: awaiting(rig) > 0)
    rig.observe(node("large", cpu="11"), pod("new", cpu="1"), pod("friend", cpu="500m", scheduler="other"))

    decide_until(rig, lambda: "friend" in rig.placements())

    assert awaiting(rig) > 0
    assert "new" not in rig.placements()
    rig.settle()
    assert rig.placements()["p0"] == "large"
