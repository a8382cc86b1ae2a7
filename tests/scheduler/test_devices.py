"""Device claims of a pod between node choice and bind: reserved, written, and what can happen meanwhile."""

import pytest

from policysched.model.identifiers import NodeName, PodUid, ResourceClaimKey
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.invariants import check_invariants
from tests.builders import node, pod
from tests.devices import DRIVER, asking, claim, claiming, device_class, device_slice, given, gpu
from tests.scheduler.rig import GANG, Rig

DEFAULT = "policy test version 1\ninclude kube_default\n"
C = ResourceClaimKey("default", "c")
D = ResourceClaimKey("default", "d")
WEB = PodUid("uid-default-web")


def rig_with(*objects: object, nodes: tuple[str, ...] = ("a",), policy: str = DEFAULT) -> Rig:
    """The class `gpu` is there."""
    rig = Rig(policy, *[node(name, cpu="2") for name in nodes], synced=False)
    rig.handle(*[e.DeviceObjectUpdated(item) for item in (device_class(), *objects)])  # type: ignore[arg-type]
    rig.handle(e.Synced())
    return rig


def agreed(rig: Rig) -> bool:
    return check_invariants(rig.scheduler._core) == []


def test_a_pod_is_bound_after_its_claim_is_allocated() -> None:
    rig = rig_with(device_slice("a", gpu("g0")), claim("c"))
    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()
    (prepare,) = rig.of(c.Prebind)
    before = rig.placements()

    rig.handle(e.PrebindWritten(WEB, {C: 5}))

    (wanted,) = prepare.claims_to_reserve
    assert wanted.allocation is not None
    assert [str(allocated.device) for allocated in wanted.allocation.devices] == ["gpu.example.com/a/g0"]
    assert (wanted.claim, wanted.uid, wanted.version, wanted.finalizers) == (C, "uid-c", 1, ())
    assert before == {}
    assert rig.placements() == {"web": "a"}
    assert agreed(rig)


def test_a_device_is_not_reserved_twice() -> None:
    rig = rig_with(device_slice("a", gpu("g0")), claim("c"), claim("d"))

    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()
    rig.observe(pod("other", spec=claiming("d")))
    rig.settle()

    (prepare,) = rig.of(c.Prebind)
    (report,) = rig.of(c.ReportPending)
    assert prepare.name == "web"
    assert report.message == (
        "0/1 nodes are available: 1 cannot allocate all claims. "
        "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    )
    assert agreed(rig)


def test_a_device_whose_write_fails_is_released_and_waiting_pods_are_requeued() -> None:
    rig = rig_with(device_slice("a", gpu("g0")), claim("c"), claim("d"))
    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()
    rig.observe(pod("other", spec=claiming("d")))
    rig.settle()

    rig.handle(e.PrebindRefused(WEB, "claim default/c got deleted in the meantime", {}))
    rig.settle()

    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["web", "other"]
    assert any("got deleted in the meantime" in report.message for report in rig.of(c.ReportPending))
    assert rig.of(c.Unreserve) == []
    assert agreed(rig)


def test_a_refused_bind_removes_the_reservation_but_not_the_allocation() -> None:
    rig = rig_with(device_slice("a", gpu("g0"), gpu("g1")), claim("c"), claim("d"))
    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()
    rig.handle(e.PrebindWritten(WEB, {C: 5}))

    rig.handle(e.BindRefused(WEB, "no"))

    assert rig.of(c.Unreserve) == [c.Unreserve(WEB, ((C, "uid-c"),))]
    assert rig.scheduler.cache.devices.allocation(C) is not None
    assert agreed(rig)


def test_a_pod_is_reserved_again_while_its_reservation_may_still_be_removed() -> None:
    rig = rig_with(device_slice("a", gpu("g0")), claim("c"))
    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()
    rig.handle(e.PrebindWritten(WEB, {C: 5}))
    rig.handle(e.DeviceObjectUpdated(claim("c", version=5, status=given("g0", reserved=["default-web"]))))
    rig.handle(e.BindRefused(WEB, "no"))
    rig.pass_time(20)
    rig.handle(e.PrebindRefused(WEB, "the claims of an earlier attempt are being released", {}))
    rig.pass_time(20)
    rig.handle(e.PrebindWritten(WEB, {C: 6}))

    _, *later = rig.of(c.Prebind)
    assert [[wanted.claim for wanted in prebind.claims_to_reserve] for prebind in later] == [[C], [C]]
    assert len(rig.of(c.Bind)) == 2
    assert agreed(rig)


def gone_while_it_is_written() -> Rig:
    """`web` has the one device and is deleted before that is written, or known not to be; `other` waits."""
    rig = rig_with(device_slice("a", gpu("g0")), claim("c"), claim("d"))
    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()
    rig.observe(pod("other", spec=claiming("d")))
    rig.settle()
    rig.handle(e.PodDeleted(WEB))
    rig.settle()
    return rig


def test_a_device_that_may_still_be_written_for_a_deleted_pod_stays_reserved() -> None:
    rig = gone_while_it_is_written()

    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["web"]
    assert agreed(rig)


def test_the_writes_for_a_deleted_pod_are_abandoned() -> None:
    """Where requests hang they may never be begun, so that the devices of any number of pods that come and go stayed reserved."""
    rig = gone_while_it_is_written()

    assert rig.of(c.AbandonBind) == [c.AbandonBind(WEB)]


def test_devices_of_a_deleted_pod_are_released_once_the_write_is_known_to_have_failed() -> None:
    rig = gone_while_it_is_written()

    rig.handle(e.PrebindRefused(WEB, "claim default/c got deleted in the meantime", {}))
    rig.settle()

    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["web", "other"]
    assert agreed(rig)


def test_devices_of_a_deleted_pod_wake_an_overdrawn_namespace_late() -> None:
    rig = rig_with(device_slice("a", gpu("g0")), claim("c"), claim("d", namespace="tenant"))
    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()
    rig.observe(pod("other", namespace="tenant", spec=claiming("d")))
    rig.settle()
    rig.handle(e.PodDeleted(WEB))
    rig.pass_time(60)
    rig.scheduler.core.queue.decision_time.charge_failed_attempt("tenant", 10**9)

    rig.handle(e.PrebindRefused(WEB, "claim default/c got deleted in the meantime", {}))
    rig.settle()
    at_once = [prebind.name for prebind in rig.of(c.Prebind)]
    rig.pass_time(20)

    assert at_once == ["web"]
    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["web", "other"]


def test_devices_written_for_a_deleted_pod_stay_allocated_until_the_claim_releases_them() -> None:
    rig = gone_while_it_is_written()

    rig.handle(e.PrebindWritten(WEB, {C: 5}))
    rig.settle()
    before = [prebind.name for prebind in rig.of(c.Prebind)]
    rig.handle(e.DeviceObjectUpdated(claim("c", version=5, status=given("g0", reserved=["default-web"]))))
    rig.handle(e.DeviceObjectUpdated(claim("c", version=6)))
    rig.settle()

    assert before == ["web"]
    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["web", "other"]
    assert agreed(rig)


def test_devices_released_by_a_claim_stay_reserved_until_its_write_is_answered() -> None:
    rig = gone_while_it_is_written()

    rig.handle(e.DeviceObjectUpdated(claim("c", version=5, status=given("g0", reserved=["default-web"]))))
    rig.handle(e.DeviceObjectUpdated(claim("c", version=6)))
    rig.settle()
    before = [prebind.name for prebind in rig.of(c.Prebind)]
    rig.handle(e.PrebindWritten(WEB, {C: 5}))
    rig.settle()

    assert before == ["web"]
    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["web", "other"]
    assert agreed(rig)


def test_devices_of_a_shared_claim_stay_reserved_until_the_writes_for_all_its_pods_are_answered() -> None:
    rig = rig_with(device_slice("a", gpu("g0")), claim("c"), claim("d"))
    rig.observe(pod("web", spec=claiming("c")), pod("mate", spec=claiming("c")))
    rig.settle()
    rig.observe(pod("other", spec=claiming("d")))
    rig.settle()

    rig.handle(e.PrebindWritten(WEB, {C: 5}), e.PodDeleted(WEB))
    rig.handle(e.DeviceObjectUpdated(claim("c", version=5, status=given("g0", reserved=["default-web"]))))
    rig.handle(e.DeviceObjectUpdated(claim("c", version=6)))
    rig.settle()
    before = {prebind.name for prebind in rig.of(c.Prebind)}
    rig.handle(e.PrebindRefused(PodUid("uid-default-mate"), "no", {}))
    rig.handle(e.PodDeleted(PodUid("uid-default-mate")))
    rig.settle()

    assert before == {"web", "mate"}
    assert {prebind.name for prebind in rig.of(c.Prebind)} == {"web", "mate", "other"}
    assert agreed(rig)


def test_a_timeout_does_not_release_devices_that_may_still_be_written() -> None:
    rig = rig_with(device_slice("a", gpu("g0")), claim("c"), claim("d"))
    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()
    rig.observe(pod("other", spec=claiming("d")))
    rig.settle()

    rig.pass_time(1000)
    rig.settle()
    before = [prebind.name for prebind in rig.of(c.Prebind)]
    rig.handle(e.PrebindWritten(WEB, {C: 5}))
    rig.settle()

    assert before == ["web"]
    assert rig.placements() == {"web": "a"}
    assert agreed(rig)


def test_an_allocated_claim_is_only_reserved() -> None:
    rig = rig_with(
        device_slice("a", gpu("g0")), claim("c", status=given("g0", reserved=["other"])), nodes=("a", "b")
    )

    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()

    (prepare,) = rig.of(c.Prebind)
    (wanted,) = prepare.claims_to_reserve
    assert prepare.node == "a"
    assert wanted.allocation is None
    assert [consumer.name for consumer in wanted.reserved_for] == ["other"]


def test_pods_that_share_a_claim_do_not_wait_for_each_other() -> None:
    rig = rig_with(device_slice("a", gpu("g0")), device_slice("b", gpu("g0")), claim("c"), nodes=("a", "b"))

    rig.observe(pod("web", spec=claiming("c")), pod("other", spec=claiming("c")))
    rig.settle()

    first, second = rig.of(c.Prebind)
    assert first.node == second.node
    assert first.claims_to_reserve == second.claims_to_reserve
    assert agreed(rig)


def test_a_pod_waits_only_for_its_own_claim() -> None:
    rig = rig_with(device_slice("a", gpu("g0")))
    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()
    (report,) = rig.of(c.ReportPending)

    rig.handle(e.DeviceObjectUpdated(claim("d")))
    rig.settle()
    tried = len(rig.scheduler.decisions)
    rig.handle(e.DeviceObjectUpdated(claim("c")))
    rig.settle()

    assert report.message == (
        '0/1 nodes are available: could not find ResourceClaim "default/c". '
        "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    )
    assert tried == 1
    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["web"]


def test_a_resource_slice_requeues_pods_without_a_device() -> None:
    rig = rig_with(claim("c"))
    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()

    rig.handle(e.DeviceObjectUpdated(device_slice("a", gpu("g0"))))
    rig.settle()

    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["web"]


def test_an_allocation_that_rules_out_every_node_is_removed() -> None:
    rig = rig_with(
        device_slice("a", gpu("g0")),
        device_slice("b", gpu("g0")),
        claim("c", version=7, status=given("g0", node="a")),
        nodes=("a", "b"),
    )
    rig.observe(pod("web", cpu="1", spec={**claiming("c"), "nodeSelector": {"kubernetes.io/hostname": "b"}}))
    rig.settle()
    (report,) = rig.of(c.ReportPending)

    rig.handle(e.DeviceObjectUpdated(claim("c", version=8)))
    rig.settle()

    assert rig.of(c.Deallocate) == [c.Deallocate(C, "uid-c", 7)]
    assert "1 resourceclaim not available on the node" in report.message
    assert "deallocation of ResourceClaim completed, preemption:" in report.message
    assert [prebind.node for prebind in rig.of(c.Prebind)] == ["b"]


def test_a_claim_that_other_pods_use_keeps_its_devices() -> None:
    held = claim("c", status=given("g0", node="a", reserved=["other"]))
    rig = rig_with(device_slice("b", gpu("g0")), held, nodes=("b",))

    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()

    assert rig.of(c.Deallocate) == []
    assert rig.of(c.Prebind) == []


def test_a_gang_gets_devices_for_all_members_or_for_none() -> None:
    gang = f"{GANG.format(more='')}filter dynamic_resources\n"
    rig = rig_with(device_slice("a", gpu("g0"), gpu("g1")), *(claim(f"c{n}") for n in range(3)), policy=gang)
    members = [pod(f"m{n}", labels={"group": "x", "least": "3"}, spec=claiming(f"c{n}")) for n in range(3)]

    rig.observe(*members)
    rig.settle()
    before = rig.of(c.Prebind)
    rig.handle(e.DeviceObjectUpdated(device_slice("a", gpu("g0"), gpu("g1"), gpu("g2"), version=2)))
    rig.settle()

    given_ = [
        allocated.device.device
        for got in rig.of(c.Prebind)
        for allocated in got.claims_to_reserve[0].allocation.devices
    ]  # type: ignore[union-attr]
    assert before == []
    assert sorted(given_) == ["g0", "g1", "g2"]
    assert agreed(rig)


def test_without_the_device_api_other_pods_are_scheduled() -> None:
    rig = rig_with(nodes=("a",))
    rig.handle(e.DeviceKindServed("ResourceClaim", served=False))

    rig.observe(pod("web", spec=claiming("c")), pod("plain"))
    rig.settle()
    (report,) = rig.of(c.ReportPending)
    rig.handle(e.DeviceKindServed("ResourceClaim", served=True))
    rig.handle(e.DeviceObjectUpdated(claim("c")), e.DeviceObjectUpdated(device_slice("a", gpu("g0"))))
    rig.settle()

    assert rig.placements() == {"plain": "a"}
    assert "the API server does not serve resource.k8s.io/v1 (ResourceClaim)" in report.message
    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["web"]


def test_a_policy_without_the_rule_leaves_pods_with_claims_pending_and_says_why() -> None:
    rig = rig_with(
        device_slice("a", gpu("g0")),
        claim("c", asking()),
        policy="policy test version 1\nfilter node_resources_fit\n",
    )

    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()

    (report,) = rig.of(c.ReportPending)
    assert report.message == ("the pod has resource claims, but the policy has no `filter dynamic_resources`")


def rig_with_a_failing_selector(*nodes: object) -> Rig:
    """The device of node a lacks the attribute that the selector of the claim reads, that of node b has it."""
    rig = Rig(DEFAULT, *(nodes or (node("a"), node("b"))), synced=False)  # type: ignore[arg-type]
    selector = f'device.attributes["{DRIVER}"].size > 1'
    for obj in (
        device_class("gpu"),
        device_slice("a", gpu("g0")),
        device_slice("b", gpu("g0", attributes={"size": 2})),
        claim("c", asking("r", selector)),
    ):
        rig.handle(e.DeviceObjectUpdated(obj))
    rig.handle(e.Synced())
    return rig


def test_an_error_of_a_selector_on_one_node_stops_the_attempt() -> None:
    rig = rig_with_a_failing_selector()

    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()

    (report,) = rig.of(c.ReportPending)
    assert rig.of(c.Prebind) == []
    assert (report.reason, report.message) == (
        "SchedulerError",
        'running "DynamicResources" filter plugin: claim default/c: selector #0 on device gpu.example.com/a/g0: CEL runtime error: '
        "no such key: size. consider using CEL optional chaining (.? followed by orValue()) or guarding the check with has() for optional fields",
    )
    assert agreed(rig)


def test_an_error_on_a_node_that_another_filter_rejects_stops_nothing() -> None:
    rig = rig_with_a_failing_selector(node("a", unschedulable=True), node("b"))

    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()

    assert [prebind.node for prebind in rig.of(c.Prebind)] == ["b"]


@pytest.mark.parametrize(
    "change",
    [
        e.NodeDeleted(NodeName("a")),
        e.NodeUpdated(node("a", unschedulable=True)),
        e.DeviceObjectUpdated(device_slice("a", gpu("g0", attributes={"size": 1}), version=2)),
    ],
    ids=["the node is deleted", "the node is cordoned", "the device has the attribute"],
)
def test_a_stopped_attempt_is_repeated_when_its_error_may_be_gone(change: e.Event) -> None:
    rig = rig_with_a_failing_selector()
    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()

    rig.handle(change)
    rig.pass_time(20)

    assert [prebind.node for prebind in rig.of(c.Prebind)] == ["b"]


def test_an_invalid_pool_rejects_its_node_only() -> None:
    rig = rig_with(nodes=("a", "b"))
    rig.handle(e.DeviceObjectUpdated(device_slice("a", gpu("g0"), gpu("g0"))))
    rig.handle(e.DeviceObjectUpdated(device_slice("b", gpu("g0"))), e.DeviceObjectUpdated(claim("c")))

    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()

    assert [prebind.node for prebind in rig.of(c.Prebind)] == ["b"]
