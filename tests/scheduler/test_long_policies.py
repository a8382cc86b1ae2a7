"""Policies near the limit on their cost are prepared and evaluated in steps, between which events are handled."""

import pytest

from policysched.evaluate.plan import kept_variants
from policysched.evaluate.plan import plan as plans
from policysched.evaluate.plan.plan import Plan
from policysched.scheduler import commands as c
from policysched.scheduler.commands import Command
from tests.builders import node, pod
from tests.scheduler.rig import FIT, GANG, Rig
from tests.scheduler.test_decision_time import TimedRig, friend

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
    assert any(isinstance(command, c.Bind) for call in calls[:2] for command in call)  # after one slice
    assert len(scheduler.scheduler.programs()["test"].rules.scores) > RULES


def test_the_rules_of_a_layer_are_lowered_in_steps_for_the_first_pod_that_needs_them() -> None:
    scheduler = rig(f'{HEADER}layer some when pod.labels["x"] else "" == "1" {{\n{scores()}}}\n')

    scheduler.observe(pod("second", labels={"x": "1"}))
    first = decide_calls(scheduler)
    scheduler.observe(pod("third", labels={"x": "1"}))
    next_ones = decide_calls(scheduler)

    assert len(first) > RULES // 4
    assert len(next_ones) <= 2


def layers(count: int, base: str = FIT) -> str:
    """Each has as many rules as take 40 steps."""
    return base + "".join(
        f'layer l{layer} when (pod.labels["x"] else "") == "{layer}" {{\n{scores(layer * RULES)}}}\n'
        for layer in range(count)
    )


def test_a_pod_of_another_namespace_goes_first_once_the_rules_of_a_layer_take_long() -> None:
    scheduler = TimedRig(layers(1), node("n1", cpu="8"))
    scheduler.observe(pod("new", namespace="tenant", labels={"x": "0"}))
    scheduler.now_ns += 1
    scheduler.observe(friend())

    assert scheduler.attempts_until_bound("friend", {"test": 20}) < RULES // 4
    scheduler.attempts_until_bound("new", {"test": 20})


def test_events_are_applied_while_the_rules_of_a_layer_are_lowered() -> None:
    scheduler = rig(layers(1))
    scheduler.observe(pod("new", labels={"x": "0"}, cpu="12"))
    scheduler.scheduler.decide(scheduler.now_ns)

    scheduler.observe(node("large", cpu="16"))
    assert not scheduler.scheduler.decide(scheduler.now_ns)
    scheduler.settle()

    assert scheduler.placements()["new"] == "large"


def test_rules_are_lowered_for_many_namespaces_that_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_variants, "BEGUN_MAX", 2)
    monkeypatch.setattr(kept_variants, "_RULES_PER_SLICE", 1)
    count = 5
    scheduler = TimedRig(layers(count), node("n1", cpu="8"))
    scheduler.observe(*[pod(f"p{n}", namespace=f"n{n}", labels={"x": f"{n}"}) for n in range(count)])

    bound, begun = list[str](), set[int]()
    while len(bound) < count:
        bound += scheduler.decide_once({"test": 20})
        begun.add(len(scheduler.scheduler.core.plan("test")._variants._begun))

    assert max(begun) == 2
    assert sum(scheduler.attempts.values()) < 3 * count * RULES


def test_the_search_for_a_gang_pauses_while_the_rules_of_a_member_are_lowered() -> None:
    gangs = layers(2, GANG.format(more="") + "preemption never\n")
    texts = {"gangs.policy": gangs, "plain.policy": FIT.replace("policy test", "policy plain")}
    scheduler = Rig(texts, node("n1", cpu="8"))
    scheduler.observe(*[pod(f"g{n}", labels={"group": "g", "least": "2", "x": f"{n}"}) for n in range(2)])
    pauses = 0
    while not scheduler.placements():
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        pauses += scheduler.scheduler.attempt_paused
        if pauses == 2:
            scheduler.observe(pod("other", scheduler="plain", priority=1))

    assert list(scheduler.placements()) == ["other"]
    scheduler.settle()
    assert scheduler.placements().keys() == {"other", "g0", "g1"}


def test_a_long_policy_is_evaluated_in_steps_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for long_policy in (plans.LONG_POLICY, 10):
        monkeypatch.setattr(plans, "LONG_POLICY", long_policy)
        scheduler = rig(HEADER + scores())
        scheduler.observe(pod("second", cpu="2"))
        calls.append(decide_calls(scheduler))

    assert len(calls[0]) <= 2
    assert len(calls[1]) > RULES
    bound = [[command for call in each for command in call if isinstance(command, c.Bind)] for each in calls]
    assert [bind.node for bind in bound[0]] == [bind.node for bind in bound[1]] != []


def test_a_policy_is_long_on_many_nodes_that_is_short_on_few() -> None:
    """Fourteen scores with `beta_cdf` took 1.4 s in one piece at 5,000 nodes, at a cost of 1,002."""
    plan = rig(HEADER + scores()).scheduler.core.plan("test")

    assert [plan.is_long(nodes) for nodes in (0, 1_000, 1_000_000)] == [False, False, True]


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
