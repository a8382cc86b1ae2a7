"""Room that an owner has taken back is the owner's until it is bound: who borrows does not take it again, whatever its priority."""

from collections.abc import Collection
from typing import Any

import pytest

from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.quotas.quota_accounts import QuotaAccounts
from tests.builders import node, placed, pod
from tests.scheduler.calls import count_calls
from tests.scheduler.rig import Rig
from tests.scheduler.test_quota_preemption import TEAMS, carry_out_evictions, victims

WIDE = TEAMS.replace('"c" { cpu = 4', '"c" { cpu = 5')
"""Together one cpu more than the cluster has."""


def cluster(text: str = WIDE) -> Rig:
    """All is full. Team a borrows what is on n."""
    return Rig(
        text,
        *[node(name, cpu="4") for name in "nmz"],
        placed(pod("large", namespace="a", cpu="4", priority=5), "n"),
        placed(pod("a0", namespace="a", cpu="4", priority=9), "m"),
        placed(pod("b0", namespace="b", cpu="4", priority=9), "z"),
    )


def evicted(rig: Rig) -> None:
    """The room of the victims is free, and the owner is not bound yet."""
    for evict in rig.of(c.Evict):
        rig.handle(e.Evicted(evict.uid, tuple(victim.uid for victim in evict.victims)))
    for evict in rig.of(c.Evict):
        for victim in evict.victims:
            rig.handle(e.PodDeleted(victim.uid))


def owner(**more: Any) -> Pod:
    return pod("own", namespace="c", cpu="4", **more)


@pytest.mark.parametrize("count", [1, 2])
def test_who_borrows_does_not_take_the_room_of_an_owner_that_took_it_back(count: int) -> None:
    """The first pod of the two would be within the amount of b; a gang counts together."""
    rig = cluster()
    rig.observe(owner())
    rig.settle()
    assert victims(rig) == ["large"]

    labels = {} if count == 1 else {"group": "g"}
    rig.observe(
        *[
            pod(f"new{at}", namespace="a", cpu=str(1 / count), priority=9, labels=labels)
            for at in range(count)
        ]
    )
    evicted(rig)
    rig.pass_time(30)

    assert rig.placements()["own"] == "n"
    assert "new0" not in rig.placements()
    assert victims(rig) == ["large"]
    rig.check_invariants()


def test_who_borrows_uses_the_room_beside_the_owner() -> None:
    rig = cluster()
    rig.observe(owner())
    rig.settle()

    rig.observe(node("free", cpu="1"), pod("new", namespace="a", cpu="1", priority=9))
    evicted(rig)
    rig.pass_time(30)

    assert rig.placements()["own"] == "n"
    assert rig.placements()["new"] == "free"


def test_a_pod_within_its_amounts_takes_the_room_by_its_priority() -> None:
    rig = cluster(WIDE.replace('"b" { cpu = 4', '"b" { cpu = 5'))
    rig.observe(owner())
    rig.settle()

    rig.observe(pod("new", namespace="b", cpu="1", priority=9))
    evicted(rig)
    rig.settle()

    assert rig.placements()["new"] == "n"


def test_who_borrows_takes_the_room_of_a_nomination_that_has_ended() -> None:
    rig = cluster()
    rig.observe(owner())
    rig.settle()
    rig.observe(pod("new", namespace="a", cpu="1", priority=9))
    evicted(rig)

    rig.handle(e.PodDeleted(owner().uid))
    rig.pass_time(30)

    assert rig.placements()["new"] == "n"


def test_who_evicts_others_beside_the_owner_leaves_its_nomination() -> None:
    """The owner takes two of four cpu; the other two are of pods that the new one may evict by priority."""
    rig = Rig(
        TEAMS.replace('"c" { cpu = 4', '"c" { cpu = 6'),
        *[node(name, cpu="4") for name in "nmz"],
        placed(pod("large", namespace="a", cpu="2", priority=9), "n"),
        placed(pod("small", namespace="a", cpu="2", priority=5), "n"),
        placed(pod("a0", namespace="a", cpu="4", priority=9), "m"),
        placed(pod("b0", namespace="b", cpu="4", priority=9), "z"),
    )
    rig.observe(pod("own", namespace="c", cpu="3", priority=-1))
    rig.settle()
    first = victims(rig)

    rig.observe(pod("new", namespace="a", cpu="1", priority=8))
    rig.settle()

    assert rig.scheduler._core.cache.nominated.keys() >= {owner().uid}
    carry_out_evictions(rig)
    assert "own" in rig.placements()
    assert first


def test_what_an_owner_keeps_is_counted_also_where_the_quota_is_used_up_without_it() -> None:
    """The borrower is entitled to something by its team: it takes back as much as it needs beside the owner, or nothing."""
    text = """\
policy test version 1
filter node_resources_fit
quota org by pod.labels["org"] else "none" {
  "x" { cpu = 3 borrow any }
  "y" { cpu = 3 borrow any }
  others { cpu = 0 }
}
quota team by pod.labels["team"] else "none" within org {
  "c" in "y" { cpu = 6 }
  others { cpu = 0 borrow any }
}
"""

    def labels(org: str, team: str) -> dict[str, str]:
        return {"org": org, "team": team}

    rig = Rig(
        text,
        node("n", cpu="20"),
        placed(pod("large", cpu="4", labels=labels("y", "c")), "n"),
        placed(pod("b0", cpu="1", labels=labels("y", "b"), priority=9), "n"),
        placed(pod("x0", cpu="1", labels=labels("x", "a"), priority=9), "n"),
    )
    rig.observe(pod("own", cpu="2", labels=labels("x", "other")))
    rig.settle()
    assert victims(rig) == ["large"]

    rig.observe(pod("again", cpu="5", labels=labels("y", "c"), priority=9))
    evicted(rig)
    rig.settle()

    assert rig.placements()["own"] == "n"
    assert victims(rig) == ["large"], "one more cpu would be enough without the owner alone"


NESTED = """\
policy test version 1
filter node_resources_fit
quota org by pod.labels["org"] else "none" {
  "x" { cpu = 4 borrow any }
  "y" { cpu = 4 borrow any }
  others { cpu = 0 }
}
quota team by pod.labels["team"] else "none" within org {
  "b" in "x" { cpu = 3 borrow any }
  "c" in "y" { cpu = 3 }
  others { cpu = 0 borrow any }
}
"""


@pytest.mark.parametrize(("amount", "victim"), [(3, "other"), (5, "own-team")])
def test_an_organisation_gives_back_what_its_teams_borrow_first(amount: int, victim: str) -> None:
    """If its rows fit. Otherwise it may borrow although none of its teams does."""
    rig = Rig(
        NESTED.replace('"c" in "y" { cpu = 3 }', f'"c" in "y" {{ cpu = {amount} borrow any }}'),
        node("n", cpu="20"),
        placed(pod("own-team", cpu="3", labels={"org": "y", "team": "c"}), "n"),
        placed(pod("other", cpu="3", labels={"org": "y", "team": "d"}, priority=9), "n"),
    )

    rig.observe(pod("claimant", cpu="3", labels={"org": "x", "team": "b"}))
    rig.settle()

    assert victims(rig) == [victim]


def test_a_gang_that_would_borrow_in_part_takes_nothing_back() -> None:
    """Its first member alone is within the amount: what a large victim frees beside it is for all who borrow."""
    rig = Rig(
        TEAMS.replace('"c" { cpu = 4', '"c" { cpu = 2'),
        node("n", cpu="20"),
        placed(pod("a0", namespace="a", cpu="6"), "n"),
        placed(pod("b0", namespace="b", cpu="4"), "n"),
    )

    rig.observe(*[pod(f"own{at}", namespace="c", cpu="2", labels={"group": "g"}) for at in range(2)])
    rig.settle()

    assert victims(rig) == []


def test_a_decision_asks_about_claims_only_for_nominations_of_lower_priority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = cluster()
    rig.observe(owner(priority=9))
    rig.settle()

    def decide() -> None:
        rig.observe(*[pod(f"new{at}", namespace="a", cpu="1", priority=at) for at in range(9)])
        rig.settle()

    assert count_calls(monkeypatch, QuotaAccounts, "claims_against", decide) == 0


def _claims(rig: Rig, asking: Pod) -> Collection[object]:
    return rig.scheduler._core.quotas.claims_against([asking])


def test_policies_that_evict_nobody_know_no_claims() -> None:
    rig = Rig(WIDE + "preemption never\n", node("n", cpu="4"))

    assert not _claims(rig, pod("new", namespace="x", cpu="1"))
