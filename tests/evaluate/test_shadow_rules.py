"""Shadow rules change no decision, and what is said about them is what would happen.

Some rules of a generated policy become shadow rules. What is left has to decide as if they were not there, and the effect of
each is compared with a policy in which it is used.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policysched import evaluate
from policysched.evaluate import evaluator as evaluator_module
from policysched.evaluate.shadow_effects import shadow_effects
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import NO_RULES, RuleSet
from policysched.lang.ir.verdict import ShadowEffect
from policysched.model.pods import QueuedPodInfo
from tests.builders import node, pod, world
from tests.evaluate.clusters import SECOND_NS, ClusterRandom, Scene, scenes
from tests.evaluate.evaluation import answer
from tests.evaluate.test_reference_property import SEARCH, change, copied
from tests.strategies import policies
from tests.strategies import program as checked


def split(program: Program, shadowed: int) -> Program:
    """The rules of the mask `shadowed` become shadow rules."""
    rules = (*program.rules.filters, *program.rules.scores)
    chosen = {id(rule) for index, rule in enumerate(rules) if shadowed >> index & 1}

    def part(*, shadow: bool) -> RuleSet:
        return RuleSet(
            tuple(rule for rule in program.rules.filters if (id(rule) in chosen) is shadow),
            tuple(rule for rule in program.rules.scores if (id(rule) in chosen) is shadow),
        )

    return replace(program, rules=part(shadow=False), shadows=part(shadow=True), layers=(), outage=None)


def decides_as_without(program: Program, scene: Scene) -> None:
    """Beside an evaluator of the same policy without shadow rules, over a cluster that changes. Each evaluator has a copy
    of the cluster, because it follows the changes of its cache alone; the third copy is for the effects."""
    bare = replace(program, shadows=NO_RULES)
    sides = []
    for policy in (program, bare, bare):
        cache = copied(scene.cache)
        evaluator, plan = evaluate.Evaluator(cache), evaluate.compile(policy)
        evaluator.build_columns(plan)
        sides.append((evaluator, plan, cache, ClusterRandom(len(cache.nodes) + len(cache.pods))))
    first, *others = scene.pods
    for step, other in enumerate(others * 2):
        arguments: dict[str, Any] = {
            "now_ns": scene.now_ns + step * 40 * SECOND_NS,
            "facts": scene.facts,
            "samples": scene.samples,
        }
        for each in (first, other, first):
            with_shadows, without = (side.evaluate(plan, each, **arguments) for side, plan, _, _ in sides[:2])
            assert answer(with_shadows) == answer(without), step
            says_what_would_happen(with_shadows, program, each, sides[2][2], arguments)
        for _, _, cache, rng in sides:
            change(cache, other, rng)


def says_what_would_happen(
    verdict: evaluate.Verdict, program: Program, each: Any, cache: Any, arguments: dict[str, Any]
) -> None:
    for effect in verdict.shadows:
        assert not effect.error
        shadows, rules = program.shadows, program.rules
        added = (
            replace(
                rules,
                filters=(*rules.filters, *(rule for rule in shadows.filters if rule.name == effect.rule)),
            )
            if effect.kind == "filter"
            else replace(
                rules, scores=(*rules.scores, *(rule for rule in shadows.scores if rule.name == effect.rule))
            )
        )
        used = evaluate.Evaluator(cache).evaluate(
            evaluate.compile(replace(program, rules=added, shadows=NO_RULES)), each, **arguments
        )
        if used.pod_rejection is not None:  # a filter that rejects the pod on every node
            assert effect.kind == "filter" and used.selected is None
            continue
        assert used.selected == effect.selected, effect
        if effect.kind == "filter":
            assert verdict.feasible_count - used.feasible_count == effect.rejected_count


@settings(SEARCH, max_examples=40)
@given(text=policies(layers=False), shadowed=st.integers(1, 2**12), scene=scenes(pods=3))
def test_a_policy_with_shadow_rules_decides_as_without_them(text: str, shadowed: int, scene: Scene) -> None:
    decides_as_without(split(checked(text), shadowed), scene)


def _rejected_rows_are_removed(
    plan: Any, evaluations: Any, context: Any, overlay: Any, decision: Any
) -> tuple[ShadowEffect, ...]:
    shadow = plan.shadow
    if shadow is None or decision.row is None:
        return ()
    evaluation, _ = evaluations.get(shadow, shadow.variant(()), context, overlay)
    for index in range(len(evaluation.rules.filters)):
        decision.evaluation.total[evaluation.rejected_rows(index)] = -1
    return ()


def _scores_are_added(
    plan: Any, evaluations: Any, context: Any, overlay: Any, decision: Any
) -> tuple[ShadowEffect, ...]:
    shadow = plan.shadow
    if shadow is None or decision.row is None:
        return ()
    evaluation, snapshot = evaluations.get(shadow, shadow.variant(()), context, overlay)
    for index in range(len(evaluation.rules.scores)):
        decision.evaluation.total += evaluation.weighted_scores(index, decision.evaluation.feasible, snapshot)
    return ()


def _scores_are_ignored(*args: Any) -> tuple[ShadowEffect, ...]:
    return tuple(
        replace(effect, selected=args[-1].snapshot.columns.names[args[-1].row])
        if effect.kind == "score"
        else effect
        for effect in shadow_effects(*args)
    )


SIMPLE = """\
policy test version 1
filter node_resources_fit
score wide weight 1 higher node.allocatable.cpu normalize max
shadow filter small require node.allocatable.cpu < 4
shadow score narrow weight 9 lower node.allocatable.cpu normalize minmax
"""


@pytest.mark.parametrize("bug", [_rejected_rows_are_removed, _scores_are_added, _scores_are_ignored])
def test_the_property_catches(bug: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = [node("small", cpu="2"), node("middle", cpu="3"), node("large", cpu="8")]
    cases = (pod("a", cpu="1"), pod("b", cpu="1"), pod("c", cpu="1"))
    scene = Scene(world(cluster), cases, QueuedPodInfo(0, 0), {}, 10**18)
    decides_as_without(checked(SIMPLE), scene)

    monkeypatch.setattr(evaluator_module, "shadow_effects", bug)

    with pytest.raises(AssertionError):
        decides_as_without(checked(SIMPLE), scene)
