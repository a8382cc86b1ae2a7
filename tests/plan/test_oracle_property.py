"""`plan` says of every pod and node what `oracle` says: the property that everything fast rests on."""

from collections.abc import Callable
from dataclasses import fields

import pytest
from hypothesis import HealthCheck, given, settings

from policysched import oracle, plan
from policysched.cluster.objects import PodFacts
from policysched.lang.program import Program
from policysched.lang.verdict import Explanation
from tests.plan.clusters import SECOND_NS, Scene, scenes
from tests.plan.policies import CORNERS, corner
from tests.strategies import programs

SEARCH = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


# ── the properties ─────────────────────────────────────────────────────────────────────────────────────────────────


def planned(program: Program, scene: Scene) -> list[Explanation]:
    evaluator, compiled = plan.Evaluator(scene.cache), plan.compile(program)
    evaluator.prepare(compiled)
    return [
        evaluator.explain(compiled, pod, now_ns=scene.now_ns, facts=scene.facts, samples=scene.samples)
        for pod in scene.pods
    ]


def plain(program: Program, scene: Scene) -> list[Explanation]:
    return [
        oracle.evaluate(
            program, pod, scene.cache, now_ns=scene.now_ns, facts=scene.facts, samples=scene.samples
        )
        for pod in scene.pods
    ]


def explanations_agree(program: Program, scene: Scene) -> None:
    for fast, slow in zip(planned(program, scene), plain(program, scene), strict=True):
        for field in fields(Explanation):
            assert getattr(fast, field.name) == getattr(slow, field.name), field.name


def verdicts_agree(program: Program, scene: Scene) -> None:
    """The fast answer is the short form of the long one."""
    evaluator, compiled = plan.Evaluator(scene.cache), plan.compile(program)
    evaluator.prepare(compiled)
    for pod, slow in zip(scene.pods, plain(program, scene), strict=True):
        verdict = evaluator.evaluate(
            compiled, pod, now_ns=scene.now_ns, facts=scene.facts, samples=scene.samples
        )
        assert verdict.pod_refusal == slow.pod_refusal
        assert verdict.selected == slow.selected
        if slow.pod_refusal is None:
            assert verdict.feasible_count == len(slow.feasible)
            assert verdict.node_count == len(scene.cache.nodes)
            assert dict(verdict.counts()) == counted(slow)
            assert verdict.only_scaleup_no() == only_scaleup_no(slow)
        if slow.selected is not None:
            assert verdict.score == slow.totals[slow.selected]


def counted(explanation: Explanation) -> dict[str, int]:
    counts: dict[str, int] = {}
    for refusals in explanation.rejected.values():
        for group in refusals[0].groups:
            counts[group] = counts.get(group, 0) + 1
    return counts


def only_scaleup_no(explanation: Explanation) -> bool:
    """Every refused node is held back only by rules for which a new node would be no help."""
    refused = explanation.rejected.values()
    return bool(refused) and all(not one.scaleup for refusals in refused for one in refusals)


def orders_agree(program: Program, scene: Scene) -> None:
    compiled = plan.compile(program)
    pods = [
        (pod, PodFacts(scene.now_ns - index * 25 * SECOND_NS, index)) for index, pod in enumerate(scene.pods)
    ]
    fast, slow = [], []
    for pod, facts in pods:
        space = scene.cache.namespaces.get(pod.namespace)
        fast.append(compiled.order_key(pod, space, facts, scene.now_ns)[0])
        slow.append(oracle.order_key(program, pod, space, facts, scene.now_ns))
    for one in range(len(pods)):
        for other in range(len(pods)):
            assert (fast[one] < fast[other]) == (slow[one] < slow[other]), (pods[one], pods[other])


def gangs_agree(program: Program, scene: Scene) -> None:
    compiled = plan.compile(program)
    for pod in scene.pods:
        space = scene.cache.namespaces.get(pod.namespace)
        fast, slow = compiled.gang(pod, space), oracle.gang_terms(program, pod, space)
        assert (fast is None) == (slow is None)
        if slow is not None:
            assert {name.name: getattr(fast, name.name) for name in fields(slow)} == {
                name.name: getattr(slow, name.name) for name in fields(slow)
            }


PROPERTIES: tuple[Callable[[Program, Scene], None], ...] = (
    explanations_agree,
    verdicts_agree,
    orders_agree,
    gangs_agree,
)


@pytest.mark.parametrize("name", CORNERS)
@SEARCH
@given(scene=scenes(pods=3))
def test_plan_and_oracle_agree_in_every_corner_of_the_language(name: str, scene: Scene) -> None:
    for agree in PROPERTIES:
        agree(corner(name), scene)


@settings(SEARCH, max_examples=120)
@given(program=programs(), scene=scenes(pods=3))
def test_plan_and_oracle_agree_on_generated_policies(program: Program, scene: Scene) -> None:
    for agree in PROPERTIES:
        agree(program, scene)
