"""A pod that leaves and comes back with its UID, as in a relist, while the device writes of its earlier attempts are not answered:
each attempt keeps its devices until its own answer, and no longer."""

from itertools import permutations

import pytest

from policysched.model.identifiers import PodUid, ResourceClaimKey
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.prebind import Prebinder
from tests.builders import node, pod
from tests.devices import claim, claiming, device_class, device_slice, given, gpu
from tests.scheduler.rig import Rig

C = ResourceClaimKey("default", "c")
WEB = PodUid("uid-default-web")


def returned(times: int) -> Rig:
    """`web` has the one device, and came back so often before any write was answered. `other` waits for the device."""
    rig = Rig("policy test version 1\ninclude kube_default\n", node("a", cpu="2"), synced=False)
    objects = (device_class(), device_slice("a", gpu("g0")), claim("c"), claim("d"))
    rig.handle(*[e.DeviceObjectUpdated(each) for each in objects])
    rig.handle(e.Synced())
    rig.observe(pod("web", spec=claiming("c")))
    rig.settle()
    rig.observe(pod("other", spec=claiming("d")))
    rig.settle()
    for _ in range(times):
        rig.handle(e.PodDeleted(WEB))
        rig.observe(pod("web", spec=claiming("c")))
        rig.settle()
    return rig


def attempts(rig: Rig) -> list[int]:
    return [prebind.attempt for prebind in rig.of(c.Prebind) if prebind.uid == WEB]


def reserved_for_web(rig: Rig) -> bool:
    return any(WEB in reservation for reservation in rig.scheduler.cache.devices.unwritten_reservations())


def got_the_device(rig: Rig) -> list[str]:
    rig.settle()
    return [prebind.name for prebind in rig.of(c.Prebind) if prebind.name != "web"]


def test_a_refusal_of_the_earlier_attempt_keeps_what_the_later_one_may_write() -> None:
    rig = returned(1)
    first, second = attempts(rig)

    rig.handle(e.PrebindRefused(WEB, "not sent", {}, first))
    meanwhile = got_the_device(rig)
    rig.handle(e.PodDeleted(WEB))
    rig.handle(e.PrebindRefused(WEB, "not sent", {}, second))

    assert meanwhile == []
    assert got_the_device(rig) == ["other"]


def test_the_later_attempt_is_bound_and_its_device_is_free_when_the_claim_is() -> None:
    """It stayed reserved for ever: the earlier attempt was waited for in its place."""
    rig = returned(1)
    first, second = attempts(rig)

    rig.handle(e.PrebindWritten(WEB, {C: 5}, first))
    early = rig.placements()
    rig.handle(e.PrebindWritten(WEB, {C: 5}, second))

    assert (early, rig.placements()) == ({}, {"web": "a"})
    assert not reserved_for_web(rig)
    rig.handle(e.DeviceObjectUpdated(claim("c", version=5, status=given("g0", reserved=["default-web"]))))
    assert got_the_device(rig) == []
    rig.handle(e.PodDeleted(WEB), e.DeviceObjectUpdated(claim("c", version=6)))
    assert got_the_device(rig) == ["other"]


def test_a_denial_of_the_later_attempt_keeps_what_the_earlier_one_may_write() -> None:
    rig = returned(1)
    first, second = attempts(rig)

    rig.handle(e.PrebindRefused(WEB, "denied", {}, second), e.PodDeleted(WEB))
    meanwhile = got_the_device(rig)
    rig.handle(e.PrebindWritten(WEB, {C: 5}, first))
    written = got_the_device(rig)
    rig.handle(e.DeviceObjectUpdated(claim("c", version=5, status=given("g0", reserved=["default-web"]))))
    rig.handle(e.DeviceObjectUpdated(claim("c", version=6)))

    assert (meanwhile, written) == ([], [])
    assert got_the_device(rig) == ["other"]


@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_the_device_is_free_after_the_last_answer_in_whatever_order_they_come(order: tuple[int, ...]) -> None:
    rig = returned(2)
    numbers = attempts(rig)
    rig.handle(e.PodDeleted(WEB))

    *earlier, last = order
    for each in earlier:
        rig.handle(e.PrebindRefused(WEB, "not sent", {}, numbers[each]))
        assert got_the_device(rig) == []
    rig.handle(e.PrebindRefused(WEB, "not sent", {}, numbers[last]))

    assert got_the_device(rig) == ["other"]
    assert not rig.scheduler._core.binds.unconfirmed_device_writes


def test_planted_prebinder_that_forgets_the_attempts_of_pods_that_are_gone_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Prebinder, "_release_unconfirmed", lambda *_: None)

    with pytest.raises(AssertionError):
        test_the_later_attempt_is_bound_and_its_device_is_free_when_the_claim_is()
