"""Pods that the kubelet rejects: how much capacity is held back, and for how long."""

from collections import Counter

import pytest

from policysched.model.identifiers import NodeName
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler import kubelet_rejections
from policysched.scheduler.kubelet_rejections import STAND_INS_MAX, KubeletRejections
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
    """What evaluations count as used there, without the pod slot that every hold takes."""
    holds = rig.scheduler._core.capacity_holds.get(NodeName(name), ())
    total = Counter({"pods": len(holds) - 1}) if len(holds) > 1 else Counter()
    for hold in holds:
        total.update(hold.pod.requests)
    return dict(total)


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


@pytest.mark.parametrize("slots", [110, 2**63 - 1])
def test_one_stand_in_counts_as_all_pods_for_which_a_node_has_no_room(slots: int) -> None:
    """With one for each of 110 pods, on a quarter of 1,000 nodes, each decision of others took 0.3 s in one piece."""
    rig = Rig(FIT, node("a", pods=str(slots)), job(1))
    rig.settle()
    rig.confirm_binds()

    rig.observe(rejected(job(1), "a", "OutOfpods", too_little("pods", 1, 10, 10)), job(2, cpu="1m"))
    rig.settle()

    assert len(rig.scheduler.core.capacity_holds[NodeName("a")]) == 1
    expected = "0/1 nodes are available: 1 Too many pods." if slots == 110 else None
    assert rig.pending_message("job-2") == expected


def test_a_node_that_lacks_a_resource_for_each_priority_has_no_more_stand_ins() -> None:
    names = [f"example.com/r{number}" for number in range(2 * STAND_INS_MAX)]
    rig = Rig(FIT, node("a", pods="1000", resources=dict.fromkeys(names, "1")))

    for priority, name in enumerate(names):
        one = pod(f"job-{priority}", resources={name: "1"}, priority=priority)
        rig.observe(placed(one, "a"), rejected(one, "a", f"OutOf{name}", too_little(name, 1, 1, 1)))

    holds = rig.scheduler.core.capacity_holds[NodeName("a")]
    assert [hold.pod.priority for hold in holds] == list(range(STAND_INS_MAX, 2 * STAND_INS_MAX))


@pytest.mark.parametrize(
    "reason",
    [
        "PodOSNotSupported",
        "PodOSSelectorNodeLabelDoesNotMatch",
        "NodeAffinity",
        "TaintToleration",
        "SysctlForbidden",
        "AppArmor",
        "SupplementalGroupsPolicyNotSupported",
        "PodLevelResourcesNotSupported",
        "PodFeatureUnsupported",
        "TopologyAffinityError",
        "SMTAlignmentError",
        "EmptyPodSharedPoolError",
        "VolumeAttachmentLimitExceeded",
        "UnexpectedAdmissionError",
        "InvalidNodeInfo",
        "NodeShutdown",
        "Evicted",
    ],
)
def test_a_reason_that_says_nothing_about_room_holds_nothing_back(reason: str) -> None:
    rig = Rig(FIT, node("a"))

    for number in (1, 2, 3):
        rig.observe(job(number, cpu="4"))
        rig.settle()
        rig.confirm_binds()
        rig.observe(rejected(job(number, cpu="4"), "a", reason, "for that reason"))

    assert held_back(rig) == {}
    assert rig.scheduler.nodes_with_capacity_holds == []
    assert rig.scheduler.counters.kubelet_rejections == {(reason, "test"): 3}
    logs = [log for log in rig.of(c.Log) if log.fields.get("reason") == reason]
    assert [(log.fields["held_back"], log.fields["for_s"]) for log in logs] == [("nothing", 0)]


def test_bare_pods_of_a_wrong_operating_system_leave_the_cluster_to_others() -> None:
    """The whole way: as many large pods as nodes, each rejected, then a pod of another namespace."""
    names = ("a", "b", "c", "d")
    rig = Rig(FIT, *[node(name, cpu="8") for name in names])
    for number in range(len(names)):
        rig.observe(job(number, cpu="7900m", namespace="tenant"))
        rig.settle()
        rig.confirm_binds()
    for number in range(len(names)):
        windows = job(number, cpu="7900m", namespace="tenant")
        on = rig.placements()[windows.name]
        rig.observe(rejected(windows, on, "PodOSNotSupported", "the OS field doesn't match node OS"))

    rig.observe(job(9, cpu="7900m"))
    rig.settle()

    assert "job-9" in rig.placements()


def test_a_hold_does_not_bind_pods_of_higher_priority() -> None:
    rig = Rig(FIT, node("a"), job(1))
    bounce(rig, job(1))

    rig.observe(job(2), job(3, priority=2_000_001_000))
    rig.settle()

    assert rig.placements() == {"job-1": "a", "job-3": "a"}


def test_a_rejected_pod_of_high_priority_holds_for_all_below_and_beside_it() -> None:
    rig = Rig(FIT, node("a"), job(1, priority=100))
    bounce(rig, job(1, priority=100))

    rig.observe(job(2), job(3, priority=100), job(4, priority=101))
    rig.settle()

    assert rig.placements() == {"job-1": "a", "job-4": "a"}


def test_a_pod_of_higher_priority_is_not_parked_with_the_pods_that_a_hold_stops() -> None:
    """They have the same equivalence key but for the priority."""
    rig = Rig(FIT, node("a"), job(1))
    bounce(rig, job(1))
    rig.observe(*[job(number) for number in range(2, 6)])
    rig.settle()

    rig.observe(job(6, priority=1))
    rig.settle()

    assert rig.placements() == {"job-1": "a", "job-6": "a"}


EVICTS = FIT.replace("preemption never", "preemption { victims = any }")


def held_for_an_urgent_pod() -> Rig:
    """Of 4 cpu, 2 are used by `low`, and the rest is held back after a rejection."""
    rig = Rig(EVICTS, node("a"), placed(pod("low", cpu="2", priority=1), "a"), job(1, priority=100))
    bounce(rig, job(1, priority=100), used=4000)
    return rig


def test_a_first_hold_evicts_no_pod() -> None:
    rig = held_for_an_urgent_pod()

    rig.observe(job(2, priority=100))
    rig.settle()

    assert rig.of(c.Evict) == []
    assert "once the hold after a kubelet's rejection ends" in str(rig.pending_message("job-2"))
    rig.pass_time(HOLD_S)
    assert rig.placements() == {"job-1": "a", "job-2": "a"}


def test_a_first_hold_evicts_no_pod_for_a_gang() -> None:
    policy = EVICTS.replace("filter", 'gang by pod.labels["group"] { min = 2 }\nfilter', 1)
    rig = held_for_an_urgent_pod()
    rig.apply_policies(policy)

    rig.observe(*[pod(name, cpu="1", priority=100, labels={"group": "g"}) for name in ("g0", "g1")])
    rig.settle()

    assert rig.of(c.Evict) == []
    rig.pass_time(HOLD_S)
    assert rig.placements() == {"job-1": "a", "g0": "a", "g1": "a"}


def test_a_repeated_hold_also_counts_for_victims() -> None:
    rig = held_for_an_urgent_pod()
    rig.pass_time(HOLD_S)

    rig.observe(job(2, priority=100))
    bounce(rig, job(2, priority=100), used=4000)
    rig.observe(job(3, priority=100))
    rig.settle()

    assert [[victim.name for victim in evict.victims] for evict in rig.of(c.Evict)] == [["low"]]


def reject_on_every_node(
    rig: Rig, numbers: range, namespace: str, owner: tuple[str, str, str] | None = None
) -> None:
    """Each pod takes most of its node, whose kubelet has nothing left."""
    for number in numbers:
        rejected_job = job(number, cpu="3", namespace=namespace, owner=owner)
        rig.observe(rejected_job)
        bounce(rig, rejected_job, used=4000)


def test_the_rejections_of_one_namespace_hold_back_at_most_a_quarter_of_the_nodes() -> None:
    rig = Rig(FIT, *[node(f"n{number}") for number in range(8)])

    reject_on_every_node(rig, range(8), "tenant")
    held_by_one = set(rig.scheduler.nodes_with_capacity_holds)
    assert len(held_by_one) == 2, held_by_one
    reject_on_every_node(rig, range(8, 14), "other")

    assert held_by_one < set(rig.scheduler.nodes_with_capacity_holds)
    assert len(rig.scheduler.nodes_with_capacity_holds) == 4


def test_the_rejections_of_one_controller_hold_back_at_most_an_eighth_of_the_nodes() -> None:
    rig = Rig(FIT, *[node(f"n{number}") for number in range(16)])

    reject_on_every_node(rig, range(5), "tenant", ("apps/v1", "ReplicaSet", "web"))
    held_by_one = set(rig.scheduler.nodes_with_capacity_holds)
    assert len(held_by_one) == 2, held_by_one
    reject_on_every_node(rig, range(5, 10), "tenant", ("apps/v1", "ReplicaSet", "db"))
    assert len(rig.scheduler.nodes_with_capacity_holds) == 4
    reject_on_every_node(rig, range(10, 15), "other")

    assert held_by_one < set(rig.scheduler.nodes_with_capacity_holds)


def test_one_controller_holds_back_the_share_of_its_namespace_without_its_own_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planted bug of the test before."""
    monkeypatch.setattr(kubelet_rejections, "OWNER_SHARE", 1)

    with pytest.raises(AssertionError):
        test_the_rejections_of_one_controller_hold_back_at_most_an_eighth_of_the_nodes()


def test_without_the_bound_one_namespace_holds_back_every_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug of the test before."""
    monkeypatch.setattr(KubeletRejections, "_may_hold", lambda *_: True)

    with pytest.raises(AssertionError):
        test_the_rejections_of_one_namespace_hold_back_at_most_a_quarter_of_the_nodes()


def test_a_kubelet_that_counts_more_than_its_node_has_holds_back_what_is_free() -> None:
    rig = Rig(FIT, node("a"), job(1))

    bounce(rig, job(1), used=9_000_000)

    assert held_back(rig) == {"cpu": 4000}


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
    monkeypatch.setattr(KubeletRejections, "_pods_of", lambda *_: ())

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


def test_rejections_for_resources_that_a_node_does_not_have_count_as_one_reason() -> None:
    """A tenant names the node and the resource, in pod after pod."""
    rig = Rig(FIT, node("a"))

    for number in range(20):
        resource = f"hugepages-{number + 3}Mi"
        direct = job(number, resources={resource: "1"})
        rig.observe(placed(direct, "a"))
        rig.observe(rejected(direct, "a", f"OutOf{resource}", too_little(resource, 1, 0, 0)))

    assert rig.scheduler.counters.kubelet_rejections == {("OutOfUnknownResource", "test"): 20}
    logs = [log for log in rig.of(c.Log) if "rejected" in log.message]
    assert [log.fields["held_back"] for log in logs] == ["nothing"]


def test_reasons_and_resources_that_a_node_invents_have_one_series_each() -> None:
    """The kubelet writes the status of its pods, and the resources of its node."""
    invented = {f"rogue.example/{number}": "1" for number in range(20)}
    rig = Rig(FIT, node("a", resources=invented))

    for number, resource in enumerate(invented):
        device, plain = job(number, resources={resource: "1"}), job(100 + number)
        rig.observe(placed(device, "a"), placed(plain, "a"))
        rig.observe(rejected(device, "a", f"OutOf{resource}", too_little(resource, 1, 0, 0)))
        rig.observe(rejected(plain, "a", f"Rogue{number}", "for that reason"))

    assert rig.scheduler.counters.kubelet_rejections == {
        ("OutOfOtherResource", "test"): 20,
        ("Other", "test"): 20,
    }
    logged = {log.fields["reason"] for log in rig.of(c.Log) if "rejected" in log.message}
    assert {reason for reason in logged if "OutOf" not in str(reason)} == {"Other"}
