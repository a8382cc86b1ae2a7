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


def bounce(rig: Rig, pod: Pod, *, used: int = 3500, capacity: int = 4000) -> ObservedPod:
    """The pod is bound to its node, whose kubelet counts so much of its cpu as used."""
    rig.settle()
    rig.confirm_binds()
    words = too_little("cpu", pod.requests["cpu"], used, capacity)
    observed = rejected(pod, rig.placements()[pod.name], "OutOfcpu", words)
    rig.observe(observed)
    return observed


def held_back(rig: Rig, name: str = "a") -> dict[str, int]:
    cache = rig.scheduler.cache
    shown, counted = cache.reported_node(NodeName(name)), cache.nodes[NodeName(name)]
    assert shown is not None
    left = {
        resource: amount - counted.allocatable[resource] for resource, amount in shown.allocatable.items()
    }
    return {resource: amount for resource, amount in left.items() if amount}


def test_the_replacement_of_a_rejected_pod_goes_to_another_node() -> None:
    rig = Rig(FIT, node("a"), job(1))

    bounce(rig, job(1))
    rig.observe(job(2))
    rig.settle()

    assert rig.placements() == {"job-1": "a"}
    assert rig.pending_message("job-2") == "0/1 nodes are available: 1 Insufficient cpu."
    assert held_back(rig) == {"cpu": 3500}


def test_a_smaller_pod_may_still_use_the_node() -> None:
    rig = Rig(FIT, node("a"), job(1))

    bounce(rig, job(1))
    rig.observe(node("b"), job(2), job(3, cpu="500m", node_selector={"kubernetes.io/hostname": "a"}))
    rig.settle()

    assert rig.placements() == {"job-1": "a", "job-2": "b", "job-3": "a"}


def test_requests_of_visible_pods_are_not_held_back_twice() -> None:
    rig = Rig(FIT, node("a"), placed(static("ours to see", cpu="2"), "a"), job(1))

    bounce(rig, job(1))

    assert held_back(rig) == {"cpu": 1500}


def test_held_capacity_is_released_as_pods_that_use_it_appear() -> None:
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


def test_the_hold_expires_and_is_twice_as_long_after_another_rejection() -> None:
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


def test_the_hold_is_limited_and_then_forgotten() -> None:
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


def test_rejections_of_binds_in_flight_are_counted_and_logged_once() -> None:
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


def test_a_node_without_free_pod_slots_is_held_back_by_pod_count() -> None:
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


def test_deleting_a_node_removes_its_held_capacity() -> None:
    rig = Rig(FIT, node("a"), job(1))
    bounce(rig, job(1))

    rig.handle(e.NodeDeleted(NodeName("a")))
    rig.observe(node("a"), job(2))
    rig.settle()

    assert rig.placements()["job-2"] == "a"


def test_a_pod_that_failed_by_itself_or_before_the_start_holds_no_capacity() -> None:
    old = rejected(job(1), "a", "OutOfcpu", too_little("cpu", 1000, 4000, 4000))
    rig = Rig(FIT, node("a"), old, job(2))

    rig.settle()

    assert rig.placements() == {"job-2": "a"}
    assert rig.scheduler.counters.kubelet_rejections == {}


def test_without_held_capacity_the_next_pod_goes_to_the_same_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planted bug of the first test."""
    monkeypatch.setattr(KubeletRejections, "_held_capacity", lambda *_: {})

    with pytest.raises(AssertionError, match="job-2"):
        test_the_replacement_of_a_rejected_pod_goes_to_another_node()


def test_another_scheduler_that_fills_a_node_during_a_bind_is_counted() -> None:
    rig = Rig(FIT, node("a"), job(1, cpu="3"))
    rig.settle()

    rig.observe(placed(static(cpu="1"), "a"))
    before = rig.scheduler.counters.overcommits
    rig.observe(placed(static("one too many", cpu="1"), "a"))
    rig.confirm_binds()

    assert (before, rig.scheduler.counters.overcommits) == (0, 1)


def test_own_and_earlier_placements_are_not_counted_as_conflicts() -> None:
    rig = Rig(FIT, node("a"), placed(static(cpu="9"), "a"), node("b"), job(1, cpu="4"))
    rig.settle()
    rig.confirm_binds()

    assert rig.placements() == {"job-1": "b"}
    assert rig.scheduler.counters.overcommits == 0
