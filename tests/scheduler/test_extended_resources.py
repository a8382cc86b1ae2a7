"""Extended resources of a DeviceClass: a claim is created for the pod, and deleted if that fails."""

import pytest

from policysched.cluster.devices.extended_resources import ExtendedResourceMapping
from policysched.model.devices import AccessibleNodes, Device, ResourceSlice
from policysched.model.identifiers import PodUid, ResourceClaimKey
from policysched.model.pods import ExtendedResourceRequest
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.invariants import check_invariants
from tests.builders import node, pod
from tests.devices import claim, device_class, device_slice, given, gpu
from tests.scheduler.rig import GANG, Rig

DEFAULT = "policy test version 1\ninclude kube_default\n"
WITHOUT = "policy test version 1\nfilter node_resources_fit\n"
GPU = "example.com/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"
WEB = PodUid("uid-default-web")
OFFERS = device_class("gpu", extendedResourceName=GPU)


def rig_with(*objects: object, nodes: tuple[object, ...] = (), policy: str = DEFAULT) -> Rig:
    """The class `gpu` gives example.com/gpu; node a has a device of it."""
    rig = Rig(policy, *(nodes or (node("a"),)), synced=False)  # type: ignore[arg-type]
    slices = device_slice("a", gpu("g0"))
    rig.handle(*[e.DeviceObjectUpdated(item) for item in (OFFERS, slices, *objects)])  # type: ignore[arg-type]
    rig.handle(e.Synced())
    return rig


def asking_for(name: str, amount: str = "1", resource: str = GPU, **more: object):  # type: ignore[no-untyped-def]
    return pod(name, cpu="1", resources={resource: amount}, **more)


def made(rig: Rig) -> c.ClaimToCreate:
    wanted = rig.of(c.Prebind)[-1].claim_to_create
    assert wanted is not None
    return wanted


def shown(wanted: c.ClaimToCreate, uid: str = "made", **more: object):  # type: ignore[no-untyped-def]
    """The claim as the watch shows it once it was made."""
    devices = [allocated.device.device for allocated in wanted.allocation.devices]
    status = given(*devices, reserved=["web"], request="container-0-request-1")
    return claim(
        wanted.claim.name, uid=uid, owner="uid-default-web", extended=True, status=status, version=5, **more
    )


def agreed(rig: Rig) -> bool:
    return check_invariants(rig.scheduler._core) == []


def test_a_pod_is_bound_after_a_claim_was_created_for_it() -> None:
    rig = rig_with()
    rig.observe(asking_for("web"))
    rig.settle()
    wanted = made(rig)
    before = rig.placements()

    rig.handle(e.PrebindWritten(WEB, {wanted.claim: 5}))
    rig.handle(e.BindConfirmed(WEB, "a"))  # type: ignore[arg-type]
    rig.handle(e.DeviceObjectUpdated(shown(wanted)))

    assert wanted.claim.name.startswith("web-extended-resources-")
    assert [str(allocated.device) for allocated in wanted.allocation.devices] == ["gpu.example.com/a/g0"]
    assert wanted.mapped == (ExtendedResourceMapping("c", GPU, "container-0-request-1"),)
    assert before == {}
    assert rig.placements() == {"web": "a"}
    assert rig.of(c.DeleteExtendedClaim) == []
    assert agreed(rig)


def test_a_node_with_the_resource_itself_needs_no_claim() -> None:
    rig = rig_with(nodes=(node("b", resources={GPU: "2"}),))

    rig.observe(asking_for("web"))
    rig.settle()

    assert rig.of(c.Prebind) == []
    assert rig.placements() == {"web": "b"}


def test_the_implicit_resource_name_of_the_class_works() -> None:
    rig = rig_with()

    rig.observe(asking_for("web", resource="deviceclass.resource.kubernetes.io/gpu"))
    rig.settle()

    assert [prebind.node for prebind in rig.of(c.Prebind)] == ["a"]


def test_a_reserved_device_is_not_given_to_a_second_pod() -> None:
    rig = rig_with()
    rig.observe(asking_for("web"))
    rig.settle()

    rig.observe(asking_for("other"))
    rig.settle()

    (report,) = rig.of(c.ReportPending)
    assert len(rig.of(c.Prebind)) == 1
    assert report.message == (
        "0/1 nodes are available: 1 cannot allocate all claims. "
        "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    )
    assert agreed(rig)


def test_a_new_device_class_requeues_pods_that_request_a_resource_no_node_has() -> None:
    rig = Rig(DEFAULT, node("a"), synced=False)
    rig.handle(e.DeviceObjectUpdated(device_slice("a", gpu("g0"))), e.Synced())
    rig.observe(asking_for("web"))
    rig.settle()
    (report,) = rig.of(c.ReportPending)

    rig.handle(e.DeviceObjectUpdated(OFFERS))
    rig.settle()

    assert f"1 Insufficient {GPU}" in report.message
    assert len(rig.of(c.Prebind)) == 1


def test_a_policy_without_the_device_filter_uses_only_nodes_with_the_resource() -> None:
    rig = rig_with(policy=WITHOUT)

    rig.observe(asking_for("web"))
    rig.settle()

    (report,) = rig.of(c.ReportPending)
    assert f"1 Insufficient {GPU}" in report.message


@pytest.mark.parametrize(
    "rules",
    [
        'include kube_default "1.35"',
        'include kube_default "1.34"',
        "filter node_resources_fit\nfilter dynamic_resources { extended_resources = no }",
    ],
)
def test_without_the_feature_gate_no_claim_is_created(rules: str) -> None:
    rig = rig_with(
        policy=f"policy test version 1\n{rules}\n", nodes=(node("a"), node("b", resources={GPU: "1"}))
    )

    rig.observe(asking_for("web"), asking_for("other"), asking_for("implicit", resource=IMPLICIT))
    rig.settle()

    placed = {bind.name: bind.node for bind in rig.of(c.Bind)}
    messages = {report.name: report.message for report in rig.of(c.ReportPending)}
    assert rig.of(c.Prebind) == []
    assert placed == {"other": "b"} or placed == {"web": "b"}
    assert f"2 Insufficient {IMPLICIT}" in messages["implicit"]
    assert agreed(rig)


def test_a_node_that_lacks_another_requested_resource_is_rejected() -> None:
    ignoring = (
        "policy test version 1\n"
        'filter node_resources_fit { ignored_resources = ["example.com/other"] }\n'
        "filter dynamic_resources\n"
    )
    rig = rig_with(policy=ignoring)

    rig.observe(pod("web", cpu="1", resources={GPU: "1", "example.com/other": "1"}))
    rig.settle()

    (report,) = rig.of(c.ReportPending)
    assert "1 cannot fit resource" in report.message


def test_a_claim_that_cannot_be_written_is_deleted_and_then_its_device_is_free() -> None:
    rig = rig_with()
    rig.observe(asking_for("web"))
    rig.settle()
    wanted = made(rig)
    rig.observe(asking_for("other"))
    rig.settle()

    rig.handle(e.PrebindRefused(WEB, "no", {}))
    rig.settle()
    before = len(rig.of(c.Prebind))
    rig.handle(e.ExtendedClaimDeleted(wanted.claim))
    rig.settle()

    assert rig.of(c.DeleteExtendedClaim) == [c.DeleteExtendedClaim(wanted.claim, WEB)]
    assert before == 1
    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["web", "other"]
    assert agreed(rig)


def test_a_refused_bind_deletes_the_claim_and_the_next_attempt_creates_another() -> None:
    rig = rig_with()
    rig.observe(asking_for("web"))
    rig.settle()
    first = made(rig)
    rig.handle(e.PrebindWritten(WEB, {first.claim: 5}))
    rig.handle(e.DeviceObjectUpdated(shown(first)))

    rig.handle(e.BindRefused(WEB, "no"))
    rig.pass_time(20)
    waits = rig.of(c.ReportPending)[-1].message
    rig.handle(e.DeviceObjectDeleted("ResourceClaim", "default", first.claim.name))
    rig.handle(e.ExtendedClaimDeleted(first.claim))
    rig.pass_time(20)

    second = made(rig)
    assert "1 cannot schedule extended resource claim. deletion of ResourceClaim completed" in waits
    assert second.claim != first.claim
    assert agreed(rig)


def test_a_late_watch_event_of_a_deleted_claim_allocates_nothing() -> None:
    rig = rig_with()
    rig.observe(asking_for("web"))
    rig.settle()
    wanted = made(rig)
    rig.handle(e.PrebindRefused(WEB, "no", {}))
    rig.handle(e.ExtendedClaimDeleted(wanted.claim, "made"))
    rig.pass_time(20)

    rig.handle(e.DeviceObjectUpdated(shown(wanted)))
    late = agreed(rig)
    rig.handle(e.DeviceObjectDeleted("ResourceClaim", "default", wanted.claim.name))

    assert made(rig).claim != wanted.claim
    assert late
    assert agreed(rig)


def test_another_claim_with_the_name_of_a_deleted_one_keeps_its_devices() -> None:
    """A tenant knows the name, and can have kube-scheduler allocate devices for a claim of that name."""
    rig = rig_with()
    rig.observe(asking_for("web"))
    rig.settle()
    wanted = made(rig)
    rig.handle(e.PrebindRefused(WEB, "no", {}), e.DeviceObjectUpdated(shown(wanted)))
    rig.handle(e.PodDeleted(WEB), e.DeviceObjectDeleted("ResourceClaim", "default", wanted.claim.name))
    rig.handle(e.ExtendedClaimDeleted(wanted.claim, "made"))

    rig.handle(e.DeviceObjectUpdated(claim(wanted.claim.name, uid="another", status=given("g0"))))
    rig.observe(asking_for("other"))
    rig.settle()

    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["web"]
    assert agreed(rig)


def test_a_claim_that_is_not_the_one_that_was_made_keeps_its_devices() -> None:
    rig = rig_with()
    rig.observe(asking_for("web"))
    rig.settle()
    wanted = made(rig)
    rig.handle(e.DeviceObjectUpdated(claim(wanted.claim.name, uid="another", status=given("g0"))))

    rig.handle(e.PrebindRefused(WEB, "no", {}), e.PodDeleted(WEB), e.ExtendedClaimDeleted(wanted.claim))
    rig.observe(asking_for("other"))
    rig.settle()

    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["web"]
    assert agreed(rig)


def test_a_claim_that_is_gone_frees_no_devices_of_one_with_its_name_that_is_being_created() -> None:
    """A tenant who guesses the name could otherwise have its device given to a second pod."""
    rig = rig_with()
    rig.observe(asking_for("web"))
    rig.settle()
    wanted = made(rig)

    rig.handle(e.DeviceObjectUpdated(claim(wanted.claim.name, uid="earlier")))
    rig.handle(e.DeviceObjectDeleted("ResourceClaim", "default", wanted.claim.name))
    rig.observe(asking_for("other"))
    rig.settle()
    meanwhile = [prebind.name for prebind in rig.of(c.Prebind)]
    rig.handle(e.PrebindWritten(WEB, {wanted.claim: 5}), e.DeviceObjectUpdated(shown(wanted)))

    assert meanwhile == ["web"]
    assert agreed(rig)


def test_a_stale_claim_of_an_earlier_process_is_deleted_before_the_next_attempt() -> None:
    left = claim("old", owner="uid-default-web", extended=True, status=given("g0"))
    rig = rig_with(left)

    rig.observe(asking_for("web"))
    rig.settle()
    before = rig.of(c.Prebind)
    rig.handle(e.DeviceObjectDeleted("ResourceClaim", "default", "old"))
    rig.settle()

    assert rig.of(c.DeleteExtendedClaim) == [c.DeleteExtendedClaim(ResourceClaimKey("default", "old"), WEB)]
    assert before == []
    assert len(rig.of(c.Prebind)) == 1
    assert agreed(rig)


def test_a_stale_claim_does_not_hold_up_other_pods() -> None:
    left = claim("old", owner="uid-default-web", extended=True)
    rig = rig_with(left)

    rig.observe(asking_for("web"), asking_for("other"))
    rig.settle()

    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["other"]


def test_a_pod_deleted_while_its_claim_is_written_leaves_no_claim() -> None:
    rig = rig_with()
    rig.observe(asking_for("web"))
    rig.settle()
    wanted = made(rig)

    rig.handle(e.PodDeleted(WEB))
    rig.handle(e.ExtendedClaimDeleted(wanted.claim))

    assert c.DeleteExtendedClaim(wanted.claim, WEB) in rig.of(c.DeleteExtendedClaim)
    assert rig.scheduler.cache.devices.usage.whole == {}
    assert agreed(rig)


def test_a_claim_that_the_watch_never_showed_is_deleted_after_its_pod() -> None:
    rig = rig_with()
    rig.observe(asking_for("web"))
    rig.settle()
    wanted = made(rig)
    rig.handle(e.PrebindWritten(WEB, {wanted.claim: 5}))
    rig.handle(e.BindConfirmed(WEB, "a"))  # type: ignore[arg-type]

    rig.handle(e.PodDeleted(WEB))

    assert rig.of(c.DeleteExtendedClaim) == [c.DeleteExtendedClaim(wanted.claim, WEB)]


def test_a_gang_gets_claims_for_all_members_or_for_none() -> None:
    policy = f"{GANG.format(more='')}filter dynamic_resources\n"
    rig = rig_with(policy=policy)
    members = [asking_for(f"m{n}", labels={"group": "x", "least": "2"}) for n in range(2)]

    rig.observe(*members)
    rig.settle()
    before = rig.of(c.Prebind)
    rig.handle(e.DeviceObjectUpdated(device_slice("a", gpu("g0"), gpu("g1"), version=2)))
    rig.settle()

    names = {
        prebind.claim_to_create.claim for prebind in rig.of(c.Prebind) if prebind.claim_to_create is not None
    }
    assert before == []
    assert len(names) == 2
    assert agreed(rig)


def test_the_requests_of_the_containers_are_mapped_to_the_claim() -> None:
    web = asking_for("web", "2")

    assert web.extended == (ExtendedResourceRequest("c", 0, False, GPU, 1, 2),)


def test_only_devices_of_nodes_where_some_were_allocated_are_counted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of all nodes, for each pod that equals no other: 30 ms in one piece for 8,000 devices."""
    names = [f"n{number:02}" for number in range(20)]
    slices = [device_slice(name, *[gpu(f"g{index}") for index in range(4)]) for name in names]
    scored = 'replace score node_resources_fit weight 2 { resources = {"cpu" = 3, "example.com/gpu" = 1} }\n'
    rig = rig_with(*slices, nodes=tuple(map(node, names)), policy=DEFAULT + scored)
    rig.observe(asking_for("first"))
    rig.settle()
    visited = 0
    original = ResourceSlice.accessible_nodes_of

    def visit(self: ResourceSlice, device: Device) -> AccessibleNodes:
        nonlocal visited
        visited += 1
        return original(self, device)

    monkeypatch.setattr(ResourceSlice, "accessible_nodes_of", visit)
    rig.observe(asking_for("second", memory="1Gi"), asking_for("third", memory="2Gi"))
    rig.settle()

    assert len(rig.of(c.Prebind)) == 3
    assert 0 < visited <= 2 * 4 * 4  # of 20 * 4
