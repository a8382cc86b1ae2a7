"""Room that an owner has taken back is the owner's until it is bound: who borrows does not take it again, whatever its priority."""

from collections.abc import Collection
from typing import Any

import pytest

from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.quotas.quota_accounts import QuotaAccounts
from policysched.scheduler.steps import run_to_completion
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


def nested(x: int, y: int, *teams: str) -> str:
    """Quotas of two organisations, and of teams inside of them."""
    rows = "\n  ".join((*teams, "others { cpu = 0 borrow any }"))
    return f"""\
policy test version 1
filter node_resources_fit
filter node_affinity
gang by pod.labels["group"] {{ min = 2 }}
quota org by pod.labels["org"] else "none" {{
  "x" {{ cpu = {x} borrow any }}
  "y" {{ cpu = {y} borrow any }}
  others {{ cpu = 0 }}
}}
quota team by pod.labels["team"] else "none" within org {{
  {rows}
}}
"""


def member(name: str, org: str, team: str, *, cpu: str = "3", on: str = "", **more: Any) -> Any:
    """A pod of a team, maybe on a node."""
    created = pod(name, cpu=cpu, **{**more, "labels": {"org": org, "team": team, **more.get("labels", {})}})
    return placed(created, on) if on else created


def test_what_an_owner_keeps_is_counted_also_where_the_quota_is_used_up_without_it() -> None:
    """The borrower is entitled to something by its team: it takes back as much as it needs beside the owner, or nothing."""
    rig = Rig(
        nested(3, 3, '"c" in "y" { cpu = 6 }'),
        node("n", cpu="20"),
        member("large", "y", "c", cpu="4", on="n"),
        member("b0", "y", "b", cpu="1", on="n", priority=9),
        member("x0", "x", "a", cpu="1", on="n", priority=9),
    )
    rig.observe(member("own", "x", "other", cpu="2"))
    rig.settle()
    assert victims(rig) == ["large"]

    rig.observe(member("again", "y", "c", cpu="5", priority=9))
    evicted(rig)
    rig.settle()

    assert rig.placements()["own"] == "n"
    assert victims(rig) == ["large"], "one more cpu would be enough without the owner alone"


TEAM_B = '"b" in "x" { cpu = 3 borrow any }'


@pytest.mark.parametrize(("amount", "victim"), [(3, "other"), (5, "own-team")])
def test_an_organisation_gives_back_what_its_teams_borrow_first(amount: int, victim: str) -> None:
    """If its rows fit. Otherwise it may borrow although none of its teams does."""
    rig = Rig(
        nested(4, 4, TEAM_B, f'"c" in "y" {{ cpu = {amount} borrow any }}'),
        node("n", cpu="20"),
        member("own-team", "y", "c", on="n"),
        member("other", "y", "d", on="n", priority=9),
    )

    rig.observe(member("claimant", "x", "b"))
    rig.settle()

    assert victims(rig) == [victim]


DAEMON: dict[str, Any] = {"owner": ("apps/v1", "DaemonSet", "agent")}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("other", [DAEMON, {}], ids=["protected", "elsewhere"])
def test_an_organisation_gives_back_more_if_what_its_teams_borrow_is_not_enough(
    other: dict[str, Any], count: int
) -> None:
    """It is protected, or not on the node of the claimants. The team that is entitled inside then takes back from whom it lends to,
    if it can, and nothing from the claimants."""
    rig = Rig(
        nested(4, 4, TEAM_B, '"c" in "y" { cpu = 3 }'),
        *[node(name, cpu="3", labels={"node": name}) for name in "nm"],
        member("own-team", "y", "c", on="n", priority=9),
        member("other", "y", "d", on="m", **other),
    )
    pinned: dict[str, Any] = {"node_selector": {"node": "n"}, "labels": {} if count == 1 else {"group": "g"}}

    rig.observe(*[member(f"own{at}", "x", "b", cpu=str(3 / count), **pinned) for at in range(count)])
    rig.settle()
    assert victims(rig) == ["own-team"]

    rig.observe(member("again", "y", "c", priority=9))
    evicted(rig)
    rig.pass_time(300)

    assert rig.placements()["own0"] == "n"
    assert victims(rig) == (["own-team"] if other else ["own-team", "other"])


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


def test_a_gang_that_asks_again_charges_its_members_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """While others are placed: only what they use is compared again."""
    rig = cluster()
    rig.observe(owner())
    rig.settle()
    members = [pod(f"new{at}", namespace="b", cpu="1m", labels={"group": "g"}) for at in range(50)]
    quotas = rig.scheduler._core.quotas

    def ask() -> None:
        for at in range(9):
            quotas.claims_against(list(members))
            rig.observe(placed(pod(f"other{at}", namespace="b", cpu="1m"), "z"))

    run_to_completion(quotas.charge_together("test", list(members)))
    assert count_calls(monkeypatch, QuotaAccounts, "charge_of", ask) == 0


def test_a_member_that_is_replaced_counts_at_once() -> None:
    rig = cluster(WIDE.replace('"b" { cpu = 4', '"b" { cpu = 5'))
    rig.observe(owner())
    rig.settle()
    first, small, large = [pod(f"new{cpu}", namespace="b", cpu=cpu) for cpu in ("0.2", "0.5", "2")]
    claims = rig.scheduler._core.quotas.claims_against

    assert not claims([first, small])
    assert claims([first, large]), "together they would borrow"


def test_policies_that_evict_nobody_know_no_claims() -> None:
    rig = Rig(WIDE + "preemption never\n", node("n", cpu="4"))

    assert not _claims(rig, pod("new", namespace="x", cpu="1"))
