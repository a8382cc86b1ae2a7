"""A pod that would borrow evicts by its priority nobody of another entity that is within its amounts."""

import pytest

from policysched.model.pods import Pod
from tests.builders import node, placed, pod
from tests.scheduler.rig import Rig
from tests.scheduler.test_claims_of_owners import member, nested
from tests.scheduler.test_quota_preemption import TEAMS, carry_out_evictions, victims


def new(count: int, cpu: int = 4) -> list[Pod]:
    """A pod of team a, or a gang that is as large."""
    labels = {} if count == 1 else {"group": "g"}
    return [
        pod(f"new{at}", namespace="a", cpu=str(cpu / count), priority=9, labels=labels) for at in range(count)
    ]


GANGS = pytest.mark.parametrize("count", [1, 2])


@GANGS
def test_who_would_borrow_does_not_evict_an_owner(count: int) -> None:
    rig = Rig(
        TEAMS,
        node("n", cpu="4"),
        node("m", cpu="4"),
        placed(pod("a0", namespace="a", cpu="4", priority=9), "m"),
        placed(pod("own", namespace="b", cpu="4"), "n"),
    )

    rig.observe(*new(count))
    rig.settle()

    assert victims(rig) == []
    message = rig.pending_message("new0") or ""
    assert "1 pod is kept by quotas" in message, message


@GANGS
def test_who_is_within_its_amounts_evicts_an_owner_by_its_priority(count: int) -> None:
    rig = Rig(TEAMS, node("n", cpu="4"), placed(pod("own", namespace="b", cpu="4"), "n"))

    rig.observe(*new(count))
    rig.settle()

    assert victims(rig) == ["own"]


@GANGS
def test_who_would_borrow_evicts_pods_of_its_own_entity_and_of_none(count: int) -> None:
    rig = Rig(
        TEAMS + "preemption { victims = any }\n",
        node("n", cpu="4"),
        node("m", cpu="4"),
        placed(pod("a0", namespace="a", cpu="4", priority=9), "m"),
        placed(pod("a1", namespace="a", cpu="2"), "n"),
        placed(pod("foreign", namespace="b", cpu="2", scheduler="default-scheduler"), "n"),
    )

    rig.observe(*new(count))
    rig.settle()

    assert sorted(victims(rig)) == ["a1", "foreign"]


@GANGS
def test_who_would_borrow_evicts_of_another_entity_what_that_borrows(count: int) -> None:
    """On n are two pods of b, which borrows half a pod: not both go."""
    rig = Rig(
        TEAMS,
        node("n", cpu="4"),
        node("m", cpu="3"),
        node("z", cpu="1"),
        placed(pod("b0", namespace="b", cpu="2"), "n"),
        placed(pod("b1", namespace="b", cpu="2"), "n"),
        placed(pod("b2", namespace="b", cpu="1", priority=9), "z"),
        placed(pod("large", namespace="a", cpu="3", priority=1), "m"),
    )

    rig.observe(*new(count, cpu=3))
    rig.pass_time(60)

    assert "large" in victims(rig)
    assert len(victims(rig)) == count
    carry_out_evictions(rig)
    rig.pass_time(30)
    assert {"new0", f"new{count - 1}"} <= rig.placements().keys()
    rig.check_invariants()


def test_who_borrows_in_another_quota_does_not_evict_who_would_take_that_back() -> None:
    """The victim borrows inside of its organisation, which is entitled to more."""
    rig = Rig(
        nested(4, 6, '"b" in "x" { cpu = 4 borrow any }'),
        node("n", cpu="4"),
        node("m", cpu="4"),
        member("own", "y", "c", on="n"),
        member("x0", "x", "b", cpu="4", on="m", priority=9),
    )

    rig.observe(member("new", "x", "b", priority=9))
    rig.settle()

    assert victims(rig) == []
