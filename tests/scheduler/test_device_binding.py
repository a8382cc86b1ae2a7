"""Binding conditions of devices are awaited between node choice and bind: met, failed, timed out."""

from datetime import UTC, datetime

from policysched.model.identifiers import PodUid, ResourceClaimKey
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.invariants import check_invariants
from tests.builders import node, pod
from tests.devices import claim, claiming, device_class, device_slice, given, gpu
from tests.scheduler.rig import START_NS, Rig

DEFAULT = "policy test version 1\ninclude kube_default\n"
C = ResourceClaimKey("default", "c")
WEB = PodUid("uid-default-web")
WAITS = {"bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"]}


def at(after_s: int = 0) -> str:
    return datetime.fromtimestamp(START_NS // 10**9 + after_s, UTC).isoformat().replace("+00:00", "Z")


def rig_with(*objects: object, nodes: tuple[str, ...] = ("a",), policy: str = DEFAULT) -> Rig:
    """Node a has a device that has to be attached first."""
    rig = Rig(policy, *[node(name, cpu="2") for name in nodes], synced=False)
    slices = device_slice("a", gpu("g0", **WAITS))
    rig.handle(*[e.DeviceObjectUpdated(item) for item in (device_class(), slices, *objects)])  # type: ignore[arg-type]
    rig.handle(e.Synced())
    return rig


def held(version: int = 5, **reported: str):  # type: ignore[no-untyped-def]
    """The claim with its device, as the watch shows it."""
    status = given("g0", reserved=["default-web"], at=at(), reported=reported, **WAITS)
    return claim("c", version=version, status=status)


def written(rig: Rig) -> None:
    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()
    rig.handle(e.PrebindWritten(WEB, {C: 5}))


def agreed(rig: Rig) -> bool:
    return check_invariants(rig.scheduler._core) == []


def test_a_pod_is_bound_after_its_devices() -> None:
    rig = rig_with(claim("c"))
    written(rig)
    rig.handle(e.DeviceObjectUpdated(held()))
    rig.handle(e.DeviceObjectUpdated(held(6, Attached="False")))
    before = rig.placements()

    rig.handle(e.DeviceObjectUpdated(held(7, Attached="True")))

    (wanted,) = rig.of(c.Prebind)[0].claims_to_reserve
    (reports,) = rig.of(c.ReportPodEvent)
    assert wanted.allocation is not None
    assert wanted.allocation.devices[0].binding_conditions == ("Attached",)
    assert wanted.allocation.devices[0].binding_failure_conditions == ("Broken",)
    assert wanted.at_ns == START_NS
    assert (reports.type, reports.reason) == ("Normal", "BindingConditionsPending")
    assert reports.message == "waiting for binding conditions for device on node a"
    assert before == {}
    assert rig.placements() == {"web": "a"}
    assert agreed(rig)


def test_conditions_from_before_the_claim_was_written_do_not_count() -> None:
    rig = rig_with(claim("c"))

    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()
    rig.handle(e.DeviceObjectUpdated(held(4, Attached="True")))
    rig.handle(e.PrebindWritten(WEB, {C: 5}))
    before = rig.placements()
    rig.handle(e.DeviceObjectUpdated(held(5, Attached="True")))

    assert before == {}
    assert rig.placements() == {"web": "a"}


def test_a_device_that_fails_to_bind_is_released_and_another_is_chosen() -> None:
    rig = rig_with(claim("c"), device_slice("b", gpu("g1")), nodes=("a", "b"))
    rig.observe(pod("web", spec={**claiming("c"), "nodeSelector": {"kubernetes.io/hostname": "a"}}))
    rig.settle()
    rig.handle(e.PrebindWritten(WEB, {C: 5}))

    rig.handle(e.DeviceObjectUpdated(held(6, Attached="False", Broken="True")))
    first = rig.of(c.ReportPending)[-1].message
    rig.pass_time(20)
    second = rig.of(c.ReportPending)[-1].message

    assert first == (
        'running PreBind plugin "DynamicResources": device binding failed: claim=c, reason=Said, message="so"'
    )
    assert rig.of(c.Unreserve) == [c.Unreserve(WEB, ((C, "uid-c"),))]
    assert rig.of(c.Deallocate) == [c.Deallocate(C, "uid-c", 6)]
    assert "1 resourceclaim not available on the node" in second
    assert "deallocation of ResourceClaim completed" in second
    assert rig.placements() == {}
    assert agreed(rig)


def test_a_device_is_released_if_its_binding_times_out() -> None:
    policy = "policy test version 1\nfilter dynamic_resources { binding_timeout_seconds = 30 }\n"
    rig = rig_with(claim("c"), policy=policy)
    written(rig)
    rig.handle(e.DeviceObjectUpdated(held()))

    rig.pass_time(29)
    early = rig.of(c.ReportPending)
    rig.pass_time(3)
    late = rig.of(c.ReportPending)[0].message
    rig.pass_time(20)

    assert early == []
    assert late == 'running PreBind plugin "DynamicResources": device binding timeout: claim=c'
    assert rig.of(c.Deallocate) == [c.Deallocate(C, "uid-c", 5)]
    assert agreed(rig)


def test_a_restarted_scheduler_waits_for_a_claim_that_is_still_being_bound() -> None:
    rig = rig_with(held(5, Attached="False"))

    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()
    (prepare,) = rig.of(c.Prebind)
    rig.handle(e.PrebindWritten(WEB, {}))
    before = rig.placements()
    rig.handle(e.DeviceObjectUpdated(held(6, Attached="True")))

    assert prepare.claims_to_reserve == ()
    assert before == {}
    assert rig.placements() == {"web": "a"}
    assert agreed(rig)


def test_deleting_an_awaited_claim_ends_the_wait() -> None:
    rig = rig_with(held(5, Attached="False"))
    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()
    rig.handle(e.PrebindWritten(WEB, {}))

    rig.handle(e.DeviceObjectDeleted("ResourceClaim", "default", "c"))

    assert 'could not find ResourceClaim "default/c"' in rig.of(c.ReportPending)[-1].message
    assert agreed(rig)


def test_pools_with_waiting_devices_come_last() -> None:
    quick = device_slice("a", gpu("q0"), pool="z-quick", name="z-quick")
    rig = rig_with(claim("c"), quick)

    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()

    (wanted,) = rig.of(c.Prebind)[0].claims_to_reserve
    assert wanted.allocation is not None
    assert [allocated.device.device for allocated in wanted.allocation.devices] == ["q0"]
