"""Pauses in the attempt of a gang whose members reserve volumes: what is reserved must still be there afterwards."""

from collections.abc import Callable

import pytest

from policysched.cluster.volumes.volume_cache import VolumeCache
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.gangs import gang_overlay, pause
from tests.builders import node, pod
from tests.scheduler.rig import Rig
from tests.scheduler.test_pauses import (
    NEVER,
    SPREAD,
    attempts_pause,
    decide_until_pause,
    plain,
    rig,
)
from tests.volumes import claim, storage_class, using, volume

MEMBERS = 6
PLAIN = "policy plain version 1\ninclude kube_default\npreemption never\n"


def paused(
    *sizes: str, placed: int = 3, volumes: int = MEMBERS + 2, policy: str = SPREAD, of_class: str = "local"
) -> Rig:
    """Each member has a claim of its own. Any volume fits, on any node. The pause is the first one in which so many members have a
    node."""
    sizes = sizes or ("1",) * MEMBERS
    labels = {"group": "g", "least": str(len(sizes))}
    scheduler = rig(
        *[node(f"n{index}", cpu="4") for index in range(5)],
        policies={"gangs.policy": policy, "plain.policy": PLAIN},
        head_start=NEVER,
    )
    claims = [claim(f"data{index}", of_class=of_class) for index in range(len(sizes))]
    made = storage_class("made", "csi.example.com")
    storage = (storage_class(), made, *claims, *[volume(f"v{index}") for index in range(volumes)])
    scheduler.handle(*[e.StorageObjectUpdated(each) for each in storage])  # type: ignore[arg-type]
    scheduler.observe(
        *[
            pod(
                f"g{index}",
                cpu=cpu,
                labels=labels,
                spec=using(f"data{index}"),
                created="2026-01-01T00:00:00Z",
            )
            for index, cpu in enumerate(sizes)
        ]
    )
    decide_until_pause(scheduler)
    while len(attempts_pause(scheduler).search.fits) < placed:
        decide_until_pause(scheduler)
    return scheduler


def reserved(scheduler: Rig) -> dict[str, str]:
    """The volume of each pod that is to be bound."""
    return {each.name: each.volumes_to_bind[0].volume for each in scheduler.of(c.Prebind)}


def volume_of(scheduler: Rig, index: int) -> str:
    _, success = attempts_pause(scheduler).search.fits[index]
    assert success.prebind_work is not None and success.prebind_work.volumes is not None
    return success.prebind_work.volumes.choice.static_bindings[0][1].name


def bound_beside(scheduler: Rig) -> int:
    """A pod is created in each pause. Returns how many are bound before the first member is to be bound."""
    for number in range(100):
        if scheduler.scheduler.attempt_paused:
            scheduler.observe(plain(f"p{number}", cpu="1m"))
        if scheduler.of(c.Prebind):
            break
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        scheduler.check_invariants()
    return len(scheduler.bind_order())


def test_pods_are_bound_while_members_reserve_volumes() -> None:
    """Before, none was once the first member had a volume."""
    scheduler = paused(placed=1)

    assert bound_beside(scheduler) >= 4
    scheduler.settle()
    assert len(set(reserved(scheduler).values())) == MEMBERS


def test_pods_are_bound_while_the_most_demanding_members_reserve_volumes() -> None:
    """In queue order the small ones take the nodes of the large ones."""
    most_free = SPREAD.replace(
        "include kube_default",
        "filter node_resources_fit\nfilter volume_binding\nscore node_resources_fit weight 1",
    )
    scheduler = paused("1", "1", "1", "1", "4", "4", "4", placed=1, policy=most_free)
    while [pod.pod.requests["cpu"] for pod, _ in attempts_pause(scheduler).search.fits] != [4000] * 3:
        decide_until_pause(scheduler)

    assert bound_beside(scheduler) >= 4
    scheduler.settle()
    assert len(set(reserved(scheduler).values())) == 7


def check_volume_is_taken() -> None:
    """Another client binds the volume of a member."""
    scheduler = paused()
    taken = volume_of(scheduler, 0)

    scheduler.handle(
        e.StorageObjectUpdated(volume(taken, claim="foreign", claim_uid="uid-foreign", version=2))
    )
    scheduler.settle()
    scheduler.pass_time(5)

    assert len(reserved(scheduler)) == MEMBERS
    assert taken not in reserved(scheduler).values()


def test_a_search_whose_volume_is_taken_in_a_pause_starts_again() -> None:
    check_volume_is_taken()


def test_a_search_whose_claim_is_gone_in_a_pause_starts_again() -> None:
    scheduler = paused()

    scheduler.handle(e.StorageObjectDeleted("PersistentVolumeClaim", "default", "data0"))
    scheduler.settle()
    scheduler.pass_time(5)

    assert not reserved(scheduler) and not scheduler.bind_order()
    assert "not found" in str(scheduler.pending_message("g0"))


def check_overlay_is_made_again() -> None:
    """The labels of a member change, so that the overlay is made anew: the next members must not get the volumes again."""
    scheduler = paused()
    (first, _), *_ = attempts_pause(scheduler).search.fits
    changed = {**first.pod.labels, "tier": "a"}

    scheduler.observe(
        pod(
            first.pod.name,
            cpu="1",
            labels=changed,
            spec=using(f"data{first.pod.name[1:]}"),
            created="2026-01-01T00:00:00Z",
        )
    )
    scheduler.settle()

    assert len(set(reserved(scheduler).values())) == MEMBERS


def test_the_next_members_get_no_volume_of_earlier_ones_after_the_overlay_is_made_again() -> None:
    check_overlay_is_made_again()


@pytest.mark.parametrize("of_class", ["local", "made"])
def test_a_pod_with_the_claim_of_a_member_gets_its_volume(of_class: str) -> None:
    """In effect is only what the pod reserves, as the gang may end without a placement: it binds the claim, too."""
    scheduler = paused(of_class=of_class)
    (first, success), *_ = attempts_pause(scheduler).search.fits

    scheduler.observe(pod("p", scheduler="plain", cpu="1m", spec=using(f"data{first.pod.name[1:]}")))
    scheduler.settle()

    prebinds = {each.name: each for each in scheduler.of(c.Prebind)}
    assert next(iter(prebinds)) == "p" and len(prebinds) == MEMBERS + 1
    ours, of_member = prebinds["p"], prebinds[first.pod.name]
    assert ours.volumes_to_bind == of_member.volumes_to_bind
    assert ours.volumes_to_provision == of_member.volumes_to_provision
    assert ours.volumes_to_bind or (ours.volumes_to_provision and ours.node == success.node)


def test_a_pod_gets_no_volume_of_a_member() -> None:
    """Of eight volumes six are for members."""
    scheduler = paused()
    for index in range(2):
        scheduler.handle(e.StorageObjectUpdated(claim(f"more{index}")))
        scheduler.observe(pod(f"p{index}", scheduler="plain", cpu="1m", spec=using(f"more{index}")))
    scheduler.settle()

    volumes = reserved(scheduler)
    assert len(volumes) == len(set(volumes.values())) == MEMBERS + 2


@pytest.mark.parametrize(
    ("holder", "part", "planted", "check"),
    [
        (VolumeCache, "still_has", lambda *_: True, check_volume_is_taken),
        (
            gang_overlay,
            "add_member",
            lambda overlay, pod, success: overlay.add_pod(pod.pod, success.node),
            check_overlay_is_made_again,
        ),
    ],
    ids=["what is reserved is not looked at", "an overlay is made again without what is reserved"],
)
def test_a_planted_mistake_is_found(
    holder: object, part: str, planted: object, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, part, planted)
    if holder is pause:
        monkeypatch.setattr(gang_overlay, part, planted)

    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize("placed", [2, 3, 4])
def test_members_that_are_placed_again_keep_volumes_whose_class_changed_in_a_pause(placed: int) -> None:
    """Before, the search that takes members back raised: what they had passed was computed again."""
    policy = SPREAD.replace(
        "include kube_default",
        "filter node_resources_fit\nfilter volume_binding\nscore node_resources_fit weight 1",
    )
    scheduler = paused("1", "1", "1", "1", "4", "4", "4", placed=1, policy=policy, of_class="made")
    second = [4000] * min(placed, 3) + [1000] * max(0, placed - 3)
    while [each.pod.requests["cpu"] for each, _ in attempts_pause(scheduler).search.fits] != second:
        decide_until_pause(scheduler)

    scheduler.handle(e.StorageObjectUpdated(storage_class("made", "csi.example.com", zones=("elsewhere",))))

    scheduler.settle()  # with the invariants: no attempt has raised
    assert "internal error" not in str(scheduler.pending_message("g0"))
