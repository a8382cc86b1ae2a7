"""Policies near the limit on their cost are prepared and evaluated in steps, between which events are handled."""

import pytest

from policysched.evaluate.plan import plan as plans
from policysched.evaluate.plan.plan import Plan
from policysched.scheduler import commands as c
from policysched.scheduler.commands import Command
from tests.builders import node, pod
from tests.scheduler.rig import Rig

HEADER = "policy test version 1\ninclude kube_default\n"
RULES = 40


def scores(first: int = 0) -> str:
    return "".join(
        f"  score s{number} weight 1 lower node.pods * {number + 2} normalize minmax\n"
        for number in range(first, first + RULES)
    )


def rig(text: str) -> Rig:
    scheduler = Rig(text, node("n1", cpu="8"), node("n2", cpu="8"))
    scheduler.observe(pod("first"))
    scheduler.settle()
    return scheduler


def decide_calls(scheduler: Rig) -> list[list[Command]]:
    calls = []
    while scheduler.scheduler.ready(scheduler.now_ns):
        calls.append(scheduler.scheduler.decide(scheduler.now_ns))
    return calls


def test_a_new_text_is_lowered_rule_by_rule_and_pods_are_bound_meanwhile() -> None:
    scheduler = rig(HEADER)

    scheduler.apply_policies(HEADER + scores())
    scheduler.observe(pod("second"))
    calls = decide_calls(scheduler)

    assert len(calls) > RULES
    assert any(isinstance(command, c.Bind) for command in calls[0])
    assert len(scheduler.scheduler.programs()["test"].rules.scores) > RULES


def test_the_rules_of_a_layer_are_lowered_in_steps_for_the_first_pod_that_needs_them() -> None:
    scheduler = rig(f'{HEADER}layer some when pod.labels["x"] else "" == "1" {{\n{scores()}}}\n')

    scheduler.observe(pod("second", labels={"x": "1"}))
    first = decide_calls(scheduler)
    scheduler.observe(pod("third", labels={"x": "1"}))
    next_ones = decide_calls(scheduler)

    assert len(first) > RULES
    assert len(next_ones) <= 2


def test_a_long_policy_is_evaluated_in_steps_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    short = rig(HEADER + scores())
    monkeypatch.setattr(plans, "LONG_POLICY", 10)
    long = rig(HEADER + scores())

    calls = []
    for scheduler in (short, long):
        scheduler.observe(pod("second", cpu="2"))
        calls.append(decide_calls(scheduler))

    assert len(calls[0]) <= 2
    assert len(calls[1]) > RULES
    bound = [[command for call in each for command in call if isinstance(command, c.Bind)] for each in calls]
    assert [bind.node for bind in bound[0]] == [bind.node for bind in bound[1]] != []


def test_a_text_that_is_lowered_at_once_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(plan: Plan, active: tuple[int, ...]) -> object:
        plan.variant(active)
        return iter(())

    in_steps = Plan.lower_in_steps
    monkeypatch.setattr(
        Plan, "variant", lambda plan, active: ([*in_steps(plan, active)] and None) or plan._variants[active]
    )
    monkeypatch.setattr(Plan, "lower_in_steps", at_once)

    with pytest.raises(AssertionError):
        test_a_new_text_is_lowered_rule_by_rule_and_pods_are_bound_meanwhile()
