"""Pods that the kubelet rejects: how much capacity is held back, and for how long."""

from dataclasses import replace

import pytest

from policysched.model.identifiers import NodeName
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.kubelet_rejections import KubeletRejections
from policysched.scheduler.limits import SchedulerLimits
from tests.builders import node, placed, pod, rejected, too_little
from tests.scheduler.rig import FIT, Rig

HOLD_S = SchedulerLimits().rejection_hold_s


def job(number: int, **more: object) -> Pod:
    return pod(f"job-{number}", **{"cpu": "1", **more})


def static(name: str = "static", cpu: str = "3") -> Pod:
    """What the kubelet runs and the API server does not show yet."""
    return pod(name, cpu=cpu, scheduler="default-scheduler")


def bounce(rig: Rig, one: Pod, *, used: int = 3500, capacity: int = 4000) -> ObservedPod:
    """The pod is bound to its node, whose kubelet counts so much of its cpu as used."""
    rig.settle()
    rig.confirm_binds()
    words = too_little("cpu", one.requests["cpu"], used, capacity)
    seen = rejected(one, rig.placements()[one.name], "OutOfcpu", words)
    rig.observe(seen)
    return seen


def held_back(rig: Rig, name: str = "a") -> dict[str, int]:
    cache = rig.scheduler.cache
    shown, counted = cache.reported_node(NodeName(name)), cache.nodes[NodeName(name)]
    assert shown is not None
    left = {one: amount - counted.allocatable[one] for one, amount in shown.allocatable.items()}
    return {one: amount for one, amount in left.items() if amount}


def test_what_a_controller_makes_next_is_not_thrown_at_the_same_node() -> None:
    rig = Rig(FIT, node("a"), job(1))

    bounce(rig, job(1))
    rig.observe(job(2))
    rig.settle()

    assert rig.placements() == {"job-1": "a"}
    assert rig.pending_message("job-2") == "0/1 nodes are available: 1 Insufficient cpu."
    assert held_back(rig) == {"cpu": 3500}


def test_it_goes_where_there_is_room_or_to_that_node_if_it_is_small_enough() -> None:
    rig = Rig(FIT, node("a"), job(1))

    bounce(rig, job(1))
    rig.observe(node("b"), job(2), job(3, cpu="500m", node_selector={"kubernetes.io/hostname": "a"}))
    rig.settle()

    assert rig.placements() == {"job-1": "a", "job-2": "b", "job-3": "a"}


def test_what_we_see_of_the_node_ourselves_is_not_held_back_twice() -> None:
    rig = Rig(FIT, node("a"), placed(static("ours to see", cpu="2"), "a"), job(1))

    bounce(rig, job(1))

    assert held_back(rig) == {"cpu": 1500}


def test_held_capacity_is_released_as_far_as_the_pods_that_use_it_appear() -> None:
    rig = Rig(FIT, node("a"), job(1))
    bounce(rig, job(1))

    rig.observe(placed(static(cpu="3"), "a"))
    between = held_back(rig)
    rig.observe(placed(static("another", cpu="500m"), "a"))

    assert (between, held_back(rig)) == ({"cpu": 500}, {})


def test_less_capacity_is_held_if_the_node_reports_less_itself() -> None:
    rig = Rig(FIT, node("a"), job(1))
    bounce(rig, job(1), used=0, capacity=500)

    rig.observe(node("a", cpu="500m"))
    rig.observe(job(2, cpu="500m"))
    rig.settle()

    assert held_back(rig) == {}
    assert rig.placements()["job-2"] == "a"


def test_the_time_is_bounded_and_twice_as_long_when_it_comes_to_that_again() -> None:
    rig = Rig(FIT, node("a"), job(1))
    bounce(rig, job(1))
    rig.observe(job(2))
    rig.pass_time(HOLD_S - 1)
    waits = "job-2" in rig.placements()
    rig.pass_time(2)
    assert (waits, rig.placements()["job-2"]) == (False, "a")

    bounce(rig, job(2))
    rig.observe(job(3))
    rig.pass_time(2 * HOLD_S - 1)
    waits = "job-3" in rig.placements()
    rig.pass_time(2)

    assert (waits, rig.placements()["job-3"]) == (False, "a")
    assert len([log for log in rig.of(c.Log) if log.fields.get("reason") == "OutOfcpu"]) == 2


def test_nothing_is_held_for_longer_than_the_longest_time_and_then_it_is_forgotten() -> None:
    limits = SchedulerLimits(rejection_hold_s=1, rejection_hold_max_s=4)
    rig = Rig(FIT, node("a"), limits=limits)
    spans = []
    for number in range(5):
        rig.observe(job(number))
        bounce(rig, job(number))
        spans.append(rig.of(c.Log)[-1].fields["for_s"])
        rig.pass_time(4)

    rig.pass_time(5)
    rig.observe(job(9))
    bounce(rig, job(9))

    assert spans == [1, 2, 4, 4, 4]
    assert rig.of(c.Log)[-1].fields["for_s"] == 1


def test_binds_that_were_on_their_way_are_noted_and_said_once() -> None:
    rig = Rig(FIT, node("a"), job(1), job(2), job(3))

    for number in (1, 2, 3):
        bounce(rig, job(number))

    assert rig.scheduler.counters.kubelet_rejections == {("OutOfcpu", "test"): 3}
    assert len([log for log in rig.of(c.Log) if log.fields.get("reason") == "OutOfcpu"]) == 1
    assert rig.scheduler.nodes_with_capacity_holds == ["a"]


def test_a_kubelet_that_reports_no_capacity_has_less_than_requested() -> None:
    rig = Rig(FIT, node("a"), job(1))
    rig.settle()
    rig.confirm_binds()

    rig.observe(rejected(job(1), "a", "OutOfcpu", "no"), job(2), job(3, cpu="900m"))
    rig.settle()

    assert rig.placements() == {"job-1": "a", "job-3": "a"}


def test_a_node_that_has_no_place_for_another_pod_is_held_back_by_places() -> None:
    rig = Rig(FIT, node("a", pods="10"), job(1))
    rig.settle()
    rig.confirm_binds()

    rig.observe(rejected(job(1), "a", "OutOfpods", too_little("pods", 1, 10, 10)), job(2, cpu="1m"))
    rig.settle()

    assert rig.pending_message("job-2") == "0/1 nodes are available: 1 Too many pods."


def test_another_reason_holds_the_requests_of_the_pod_once_per_owner() -> None:
    rig = Rig(FIT, node("a"))

    for number in (1, 2, 3):
        bad = replace(job(number), owner_kind="ReplicaSet", owner_name="bad")
        rig.observe(bad)
        rig.settle()
        rig.confirm_binds()
        rig.observe(rejected(bad, "a", "SysctlForbidden", "forbidden sysctl"))

    assert held_back(rig) == {"cpu": 1000, "pods": 1}


def test_a_node_that_leaves_takes_what_was_held_back_with_it() -> None:
    rig = Rig(FIT, node("a"), job(1))
    bounce(rig, job(1))

    rig.handle(e.NodeDeleted(NodeName("a")))
    rig.observe(node("a"), job(2))
    rig.settle()

    assert rig.placements()["job-2"] == "a"


def test_a_pod_that_failed_by_itself_or_before_we_came_holds_nothing_back() -> None:
    old = rejected(job(1), "a", "OutOfcpu", too_little("cpu", 1000, 4000, 4000))
    rig = Rig(FIT, node("a"), old, job(2))

    rig.settle()

    assert rig.placements() == {"job-2": "a"}
    assert rig.scheduler.counters.kubelet_rejections == {}


def test_without_the_correction_the_next_pod_is_thrown_at_the_same_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planted bug of the first test."""
    monkeypatch.setattr(KubeletRejections, "_held_capacity", lambda *_: {})

    with pytest.raises(AssertionError, match="job-2"):
        test_what_a_controller_makes_next_is_not_thrown_at_the_same_node()


def test_another_scheduler_that_fills_a_node_while_our_bind_is_on_its_way_is_counted() -> None:
    rig = Rig(FIT, node("a"), job(1, cpu="3"))
    rig.settle()

    rig.observe(placed(static(cpu="1"), "a"))
    before = rig.scheduler.counters.overcommits
    rig.observe(placed(static("one too many", cpu="1"), "a"))
    rig.confirm_binds()

    assert (before, rig.scheduler.counters.overcommits) == (0, 1)


def test_what_we_place_ourselves_and_what_was_there_before_us_is_not_counted_as_others() -> None:
    rig = Rig(FIT, node("a"), placed(static(cpu="9"), "a"), node("b"), job(1, cpu="4"))
    rig.settle()
    rig.confirm_binds()

    assert rig.placements() == {"job-1": "b"}
    assert rig.scheduler.counters.overcommits == 0
