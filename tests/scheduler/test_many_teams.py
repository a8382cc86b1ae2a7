"""What an edit of one team costs beside the policies of hundreds of others: operations are counted."""

from collections.abc import Callable
from typing import Any

import pytest

from policysched.evaluate import Evaluator
from policysched.lang.check.bundle import PolicyBundle
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.policies import registry
from policysched.scheduler.policy_permissions import AllowedPolicy, PolicyPermissions
from policysched.scheduler.queue.active_queues import ActiveQueues
from tests.builders import node, pod
from tests.scheduler.rig import FIT, Rig, bundle

TEAMS = 30


def count(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """The calls from now on, by their first argument."""
    calls: list[Any] = []
    counted: Callable[..., Any] = getattr(owner, name)

    def counting(first: Any, *more: Any, **named: Any) -> Any:
        calls.append(first)
        return counted(first, *more, **named)

    monkeypatch.setattr(owner, name, counting)
    return calls


def texts(*, edited: bool = False) -> dict[str, str]:
    """The edit is one of p7."""
    named = {f"p{number}": FIT.replace("policy test", f"policy p{number}") for number in range(TEAMS)}
    if edited:
        named["p7"] += "filter node_name\n"
    return {f"{name}.policy": text for name, text in named.items()}


@pytest.mark.parametrize("decides", [False, True])
def test_the_texts_of_all_teams_are_saved_once_after_an_update(
    monkeypatch: pytest.MonkeyPatch, *, decides: bool
) -> None:
    """Saved for each of 2,400 texts, they took 26 s at the start, in which nothing was decided."""
    formed = count(monkeypatch, registry, "saved_form")
    cleaned = count(monkeypatch, Evaluator, "retain_only")
    rig = Rig(texts(), node("a"))
    assert len(rig.of(c.SavePolicyTexts)) == 1
    assert len(rig.of(c.SavePolicyTexts)[0].texts) == len(formed) == TEAMS
    assert len(cleaned) == 1
    if decides:
        rig.observe(pod("first", scheduler="p1"))
        rig.settle()
    formed.clear()

    rig.apply_policies(texts(edited=True))
    rig.settle()

    (_, saved) = rig.of(c.SavePolicyTexts)
    assert "filter node_name" in saved.texts["p7"]
    assert [program.name for program in formed] == ["p7"], "texts that did not change are not formed again"


def test_the_owner_of_a_name_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each edit asks for the owners of all names, and each name was compared with the entries of all teams."""
    permissions = PolicyPermissions(
        tuple(AllowedPolicy(f"t{team}-*", owner=f"t{team}") for team in range(TEAMS))
    )
    compared = count(monkeypatch, AllowedPolicy, "allows")
    names = [f"t{team}-{number}" for team in range(TEAMS) for number in range(8)]

    owners = [permissions.owner(name) for name in names]
    assert owners == [name.partition("-")[0] for name in names]
    assert permissions.owner("nobody's") is None
    compared.clear()

    assert [permissions.owner(name) for name in names] == owners
    assert permissions.owner("nobody's") is None
    assert not compared


def test_names_of_any_length_and_number_are_not_kept() -> None:
    permissions = PolicyPermissions((AllowedPolicy("t-*", owner="t"),))
    for number in range(40_000):
        permissions.owner(f"t-{number}")
    permissions.owner("t-" + "x" * 100_000)
    assert len(permissions._owners) <= 16_384
    assert max(map(len, permissions._owners)) <= 63


def test_policies_without_active_pods_cost_a_decision_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2,400 policies that had pods once, each decision looked at all: 9 ms."""
    rig = Rig(texts(), node("a"))
    rig.observe(*[pod(f"first{number}", scheduler=f"p{number}", cpu="1m") for number in range(TEAMS)])
    rig.settle()
    looked = count(monkeypatch, ActiveQueues, "head_of")

    rig.observe(pod("second", scheduler="p3", cpu="1m"))
    rig.settle()

    assert "second" in rig.placements()
    assert 0 < len(looked) <= 4


def test_texts_that_take_over_together_are_saved_and_looked_through_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(texts(), node("a"))
    rig.observe(pod("first", scheduler="p1"))
    rig.settle()
    cleaned = count(monkeypatch, Evaluator, "retain_only")
    saves = len(rig.of(c.SavePolicyTexts))

    rig.apply_policies({key: text + "filter node_name\n" for key, text in texts().items()})
    rig.settle()

    assert all("node_name" in program.text for program in rig.scheduler.programs().values())
    assert all("node_name" in text for text in rig.of(c.SavePolicyTexts)[-1].texts.values())
    assert len(rig.of(c.SavePolicyTexts)) - saves <= 2
    assert len(cleaned) <= 3


def test_a_text_is_saved_while_others_are_edited_all_the_time() -> None:
    rig = Rig(texts(), node("a"))
    rig.observe(pod("first", scheduler="p1"))
    rig.settle()

    for number in range(40):
        edited = {**texts(edited=True), "p9.policy": texts()["p9.policy"] + f"param a{number}: int = 1\n"}
        rig.apply_policies(edited)
        rig.commands += rig.scheduler.decide(rig.now_ns)
        rig.now_ns += 10**8

    assert "filter node_name" in rig.of(c.SavePolicyTexts)[-1].texts["p7"]


def test_an_edit_of_one_text_touches_no_status_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(texts(), node("a"))
    rig.observe(pod("first", scheduler="p1"))
    rig.settle()
    checked, edited = bundle(texts()).sources, bundle(texts(edited=True)).sources
    rig.handle(e.PoliciesUpdated(PolicyBundle(checked), "10"))
    changed = count(monkeypatch, registry, "replace")
    cleaned = count(monkeypatch, Evaluator, "retain_only")

    rig.handle(e.PoliciesUpdated(PolicyBundle({**checked, "p7.policy": edited["p7.policy"]}), "11"))
    rig.settle()

    assert "filter node_name" in rig.scheduler.programs()["p7"].text
    assert 0 < len(changed) <= 3
    assert len(cleaned) == 1
