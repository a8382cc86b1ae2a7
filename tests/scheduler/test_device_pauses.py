"""Pauses in the attempt of a gang whose members reserve devices: what is reserved must still be there afterwards."""

from collections.abc import Callable
from typing import Any

import pytest

from policysched.cluster.devices.device_overlay import DeviceOverlay
from policysched.evaluate import Overlay
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.gangs import lost_nodes
from policysched.scheduler.gangs.pause import Pause
from tests.builders import node, pod
from tests.devices import asking, claim, claiming, device_class, device_slice, given, gpu
from tests.scheduler.rig import Rig
from tests.scheduler.test_pauses import NEVER, SPREAD, attempts_pause, decide_until_pause, plain, rig
from tests.scheduler.test_volume_pauses import bound_beside

MEMBERS, NODES, PER_NODE = 6, 3, 3
DEVICES = "policy plain version 1\ninclude kube_default\npreemption never\n"
OLD, CREATED = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def gpus(count: int = PER_NODE, **more: Any) -> list[Any]:
    return [gpu(f"g{at}", **more) for at in range(count)]


def shared_slice(count: int, **more: Any) -> Any:
    return device_slice(None, *gpus(count), allNodes=True, **more)


def paused(
    *slices: Any,
    placed: int = 3,
    sizes: tuple[str, ...] = ("1",) * MEMBERS,
    policy: str = SPREAD,
    **asked: Any,
) -> Rig:
    """Each member has a claim of its own, for one device (or as `asked`). The pause is the first one in which so many members have
    a node. The claim `other` has the device g0 of node n0."""
    scheduler = rig(
        *[node(f"n{index}", cpu="4") for index in range(NODES)],
        policies={"gangs.policy": policy, "plain.policy": DEVICES},
        head_start=NEVER,
    )
    slices = slices or tuple(device_slice(f"n{index}", *gpus()) for index in range(NODES))
    claims = [claim(f"c{index}", asking("r", **asked)) for index in range(len(sizes))]
    update(scheduler, device_class(), *slices, *claims)
    labels = {"group": "g", "least": str(len(sizes))}
    scheduler.observe(
        *[
            pod(f"m{index}", cpu=cpu, labels=labels, spec=claiming(f"c{index}"), created=OLD)
            for index, cpu in enumerate(sizes)
        ]
    )
    while len(attempts_pause_or_none(scheduler)) < placed:
        decide_until_pause(scheduler)
    return scheduler


def attempts_pause_or_none(scheduler: Rig) -> list[Any]:
    paused = scheduler.scheduler._attempts._pause
    return [] if paused is None else paused.search.fits


def update(scheduler: Rig, *objects: Any) -> None:
    scheduler.handle(*[e.DeviceObjectUpdated(each) for each in objects])


def reserved(scheduler: Rig) -> dict[str, list[str]]:
    """The devices of each pod that are to be allocated, by its last attempt."""
    return {
        each.name: [
            str(device.device)
            for of_claim in each.claims_to_reserve
            if of_claim.allocation is not None
            for device in of_claim.allocation.devices
        ]
        for each in scheduler.of(c.Prebind)
    }


def device_of(scheduler: Rig, index: int) -> Any:
    _, success = attempts_pause(scheduler).search.fits[index]
    assert success.prebind_work is not None
    ((_, allocation),) = success.prebind_work.devices.allocated
    return allocation.devices[0].device


def allocated_elsewhere(device: Any, name: str = "foreign", **result: Any) -> Any:
    """A claim of another client, which has got the device."""
    on = None if device.pool == "shared" else device.pool
    return claim(name, status=given(device.device, node=on, **result))


def is_given_up(scheduler: Rig) -> bool:
    """Whether the attempt that is paused ends without a result."""
    before = attempts_pause(scheduler)
    pause: Pause | None = before
    while pause is before:
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        scheduler.check_invariants()
        pause = scheduler.scheduler._attempts._pause
    return pause is None or pause.search is not before.search


def is_same_attempt(scheduler: Rig) -> bool:
    """Whether the search goes on, and the gang gets its devices in it: each its own."""
    search = attempts_pause(scheduler).search
    members = {pod.pod.name: [str(device_of(scheduler, at))] for at, (pod, _) in enumerate(search.fits)}
    scheduler.settle()
    devices = reserved(scheduler)
    assert len({each for (each,) in devices.values()}) == len(devices)
    return members.items() <= devices.items() and len(devices) >= MEMBERS


# ── others are decided ───────────────────────────────────────────────────────────────────────────────────────────────


def test_pods_are_bound_while_members_reserve_devices() -> None:
    """Before, none was once the first member had a device."""
    scheduler = paused(placed=1)

    assert bound_beside(scheduler) >= 4
    assert len({device for (device,) in reserved(scheduler).values()}) == len(reserved(scheduler))
    scheduler.settle()
    assert len(reserved(scheduler)) == MEMBERS


def test_pods_are_bound_while_the_most_demanding_members_reserve_devices() -> None:
    """In queue order the small ones take the nodes of the large ones."""
    policy = SPREAD.replace(
        "include kube_default",
        "filter node_resources_fit\nfilter dynamic_resources\nscore node_resources_fit weight 1",
    )
    scheduler = paused(placed=1, sizes=("1", "1", "1", "4", "4"), policy=policy)
    while [each.pod.requests["cpu"] for each, _ in attempts_pause(scheduler).search.fits] != [4000] * 2:
        decide_until_pause(scheduler)

    assert bound_beside(scheduler) >= 3
    scheduler.settle()
    assert len({device for (device,) in reserved(scheduler).values()}) == 5


def test_members_see_the_devices_of_all_members_before_them() -> None:
    check_all_devices_are_used()


def check_all_devices_are_used() -> None:
    """Two nodes have none left after the first members."""
    scheduler = paused(*[device_slice(f"n{index}", *gpus(count)) for index, count in enumerate((1, 1, 4))])

    scheduler.settle()

    assert len({device for (device,) in reserved(scheduler).values()}) == MEMBERS


# ── what changes in a pause ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_search_whose_device_is_taken_in_a_pause_starts_again(is_shared: bool) -> None:
    check_device_is_taken(is_shared=is_shared)


def check_device_is_taken(*, is_shared: bool = False) -> None:
    scheduler = paused(*[shared_slice(MEMBERS + 1)] * is_shared)
    taken = device_of(scheduler, 1)

    update(scheduler, allocated_elsewhere(taken))
    assert is_given_up(scheduler)
    scheduler.pass_time(5)

    devices = [each for (each,) in reserved(scheduler).values()]
    assert len(devices) == len(set(devices)) == MEMBERS
    assert str(taken) not in devices


def test_a_search_goes_on_when_a_device_that_comes_first_is_freed() -> None:
    """A new search would choose that one: a search that starts again for each device that is freed never ends."""
    check_freed_device()


def check_freed_device() -> None:
    slices = (shared_slice(MEMBERS + 2),)
    scheduler = paused(*slices, placed=1)
    update(scheduler, claim("last", status=given(f"g{MEMBERS + 1}", node=None)))
    decide_until_pause(scheduler)
    first = device_of(scheduler, 0)
    assert first.device == "g0"
    while len(attempts_pause(scheduler).search.fits) < 3:
        decide_until_pause(scheduler)
    scheduler.handle(e.DeviceObjectDeleted("ResourceClaim", "default", "last"))

    assert is_same_attempt(scheduler)


def test_members_keep_devices_behind_those_that_are_freed() -> None:
    slices = (shared_slice(MEMBERS + 3),)
    scheduler = rig(
        *[node(f"n{index}", cpu="4") for index in range(NODES)],
        policies={"gangs.policy": SPREAD, "plain.policy": DEVICES},
        head_start=NEVER,
    )
    of_others = claim("before", status=given("g0", node=None))
    claims = [claim(f"c{index}") for index in range(MEMBERS)]
    update(scheduler, device_class(), *slices, of_others, *claims)
    labels = {"group": "g", "least": str(MEMBERS)}
    scheduler.observe(
        *[
            pod(f"m{index}", cpu="1", labels=labels, spec=claiming(f"c{index}"), created=OLD)
            for index in range(MEMBERS)
        ]
    )
    while len(attempts_pause_or_none(scheduler)) < 3:
        decide_until_pause(scheduler)

    scheduler.handle(e.DeviceObjectDeleted("ResourceClaim", "default", "before"))
    name = attempts_pause(scheduler).search.fits[0][1].node
    scheduler.observe(node(name, cpu="4", labels={"new": "label"}))  # its member is evaluated again

    assert is_same_attempt(scheduler)


@pytest.mark.parametrize("change", ["claim deleted", "claim changed", "class changed"])
def test_a_search_whose_claim_or_class_changes_in_a_pause_starts_again(change: str) -> None:
    scheduler = paused()
    match change:
        case "claim deleted":
            scheduler.handle(e.DeviceObjectDeleted("ResourceClaim", "default", "c0"))
        case "claim changed":
            update(scheduler, claim("c0", asking("r"), version=9, finalizers=("a/b",)))
        case "class changed":
            update(scheduler, device_class("gpu", 'device.driver == "gpu.example.com"'))
    assert is_given_up(scheduler)
    scheduler.pass_time(5)

    assert len(reserved(scheduler)) == (0 if change == "claim deleted" else MEMBERS)


@pytest.mark.parametrize("change", ["another device", "another slice", "this device", "gone", "tainted"])
def test_a_search_goes_on_if_slices_change_and_the_devices_of_members_do_not(change: str) -> None:
    """Drivers publish slices again for each device whose health changes."""
    scheduler = paused()
    device = device_of(scheduler, 0)
    kept = [each for each in gpus(PER_NODE + 1) if each["name"] != device.device]
    same = gpu(device.device)
    match change:
        case "another device":
            again = [same, *kept]
        case "another slice":
            update(scheduler, device_slice("n9", *gpus()))
            again = []
        case "this device":
            again = [gpu(device.device, attributes={"kind": "new"}), *kept]
        case "gone":
            again = kept
        case "tainted":
            again = [gpu(device.device, taints=[{"key": "k", "effect": "NoSchedule"}]), *kept]
    if again:
        again = sorted(again, key=lambda each: each["name"])
        update(scheduler, device_slice(device.pool, *again, version=2, generation=2))

    if change in ("another device", "another slice"):
        assert is_same_attempt(scheduler)
        return
    assert is_given_up(scheduler)
    scheduler.pass_time(5)
    assert len(reserved(scheduler)) == MEMBERS


def test_the_next_members_get_no_device_of_earlier_ones_after_devices_changed() -> None:
    """The devices of one node can be used by all from then on: what members reserved there is not of the node alone any more."""
    scheduler = paused(device_slice("n0", *gpus(8), pool="p"))
    shared = device_slice(None, *gpus(8), name="p-gpu.example.com", pool="p", version=2, allNodes=True)

    update(scheduler, shared)
    scheduler.settle()
    scheduler.pass_time(5)

    devices = [each for (each,) in reserved(scheduler).values()]
    assert len(devices) == len(set(devices)) == MEMBERS


def test_a_share_of_a_device_is_asked_for_beside_those_of_members() -> None:
    check_shares_are_summed_up()


def check_shares_are_summed_up() -> None:
    """Each of two members fits beside the share of another claim, and both do not."""
    capacity: dict[str, Any] = {"capacity": {"memory": "10Gi"}, "allowMultipleAllocations": True}
    wanted: dict[str, Any] = {"capacity": {"requests": {"memory": "4Gi"}}}
    slices = [device_slice(f"n{index}", gpu("g0", **capacity)) for index in range(NODES)]
    scheduler = paused(*slices, sizes=("1",) * 5, placed=4, **wanted)
    pools = [device_of(scheduler, at).pool for at in range(4)]
    full = next(pool for pool in pools if pools.count(pool) == 2)

    share: dict[str, Any] = {
        "shareID": "00000000-0000-4000-8000-000000000000",
        "consumedCapacity": {"memory": "4Gi"},
    }
    update(scheduler, claim("foreign", status=given("g0", node=full, **share)))
    assert is_given_up(scheduler)
    scheduler.pass_time(5)

    devices = [each for (each,) in reserved(scheduler).values()]
    assert len(devices) == 5
    assert devices.count(f"gpu.example.com/{full}/g0") == 1


# ── pods with devices ────────────────────────────────────────────────────────────────────────────────────────────────


def test_pods_with_devices_interrupt_a_gang_that_starts_nevertheless() -> None:
    """Each takes the first device, as if there were no gang. At most one attempt is lost for that."""
    scheduler = paused(shared_slice(60), placed=1)
    numbers = iter(range(50))

    for _ in range(300):
        if scheduler.scheduler.attempt_paused and (number := next(numbers, None)) is not None:
            update(scheduler, claim(f"p{number}"))
            scheduler.observe(
                pod(f"p{number}", scheduler="plain", cpu="1m", spec=claiming(f"p{number}"), created=CREATED)
            )
        if "m0" in reserved(scheduler):
            break
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        scheduler.check_invariants()
        if not scheduler.scheduler.ready(scheduler.now_ns):
            scheduler.pass_time(1)

    assert {f"m{index}" for index in range(MEMBERS)} <= reserved(scheduler).keys()
    names = [each.name for each in scheduler.of(c.Prebind)]
    assert names[0] == "p0"
    scheduler.settle()
    devices = [each for (each,) in reserved(scheduler).values()]
    assert len(devices) == len(set(devices)) > MEMBERS


# ── planted mistakes ─────────────────────────────────────────────────────────────────────────────────────────────────


def _keeps_all(*_: object, **__: object) -> bool:
    return True


def _beside_none(self: Overlay, choice: Any, on: Any, *, same_slices: bool) -> bool:
    return self._columns.available_devices.still_has(choice, on, same_slices=same_slices)


@pytest.mark.parametrize(
    ("holder", "part", "planted", "check"),
    [
        (lost_nodes, "keeps_devices", _keeps_all, check_device_is_taken),
        (Overlay, "still_has", _beside_none, check_shares_are_summed_up),
        (DeviceOverlay, "changes_since", lambda *_: set(), check_all_devices_are_used),
    ],
    ids=[
        "what is reserved is not looked at",
        "the devices of other members are not",
        "members do not see devices of members that were placed since the last one",
    ],
)
def test_a_planted_mistake_is_found(
    holder: object, part: str, planted: object, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, part, planted)

    with pytest.raises(AssertionError):
        check()


def test_a_pod_without_devices_is_decided_in_each_pause() -> None:
    scheduler = paused()
    scheduler.observe(plain("p", cpu="1m"))

    scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)

    assert scheduler.bind_order() == ["p"]
