"""The vectorized evaluation agrees with the reference implementation on every pod and node."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from policysched import evaluate
from policysched.cluster.cache import ClusterCache
from policysched.lang.ir.program import Program
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.identifiers import NodeName
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod, QueuedPodInfo
from tests import reference
from tests.builders import pending, world
from tests.evaluate.clusters import (
    NAMESPACES,
    NODE_NAMES,
    SECOND_NS,
    ClusterRandom,
    Scene,
    random_node,
    random_pod,
    scenes,
)
from tests.evaluate.policies import CORNERS, corner
from tests.reference.builtins.taint_toleration import all_tolerated
from tests.strategies import policies
from tests.strategies import program as checked

# Without shrinking: a scene is a few numbers, so nothing in it gets simpler, and minutes go by.
SEARCH = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


# ── the properties ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Case:
    """A policy and a scene. What several properties need of them is computed once."""

    program: Program
    scene: Scene

    @cached_property
    def plan(self) -> evaluate.Plan:
        return evaluate.compile(self.program)

    @cached_property
    def expected(self) -> list[PlacementExplanation]:
        """The reference's explanation for each pod of the scene."""
        return [
            reference.evaluate(self.program, pod, self.scene.cache, **self.arguments)
            for pod in self.scene.pods
        ]

    @property
    def arguments(self) -> dict[str, Any]:
        return {"now_ns": self.scene.now_ns, "facts": self.scene.facts, "samples": self.scene.samples}

    def evaluator(self) -> evaluate.Evaluator:
        """A new one, with its columns built."""
        evaluator = evaluate.Evaluator(self.scene.cache)
        evaluator.build_columns(self.plan)
        return evaluator


def explanations_agree(case: Case) -> None:
    evaluator = case.evaluator()
    for pod, slow in zip(case.scene.pods, case.expected, strict=True):
        assert differences(evaluator.explain(case.plan, pod, **case.arguments), slow) == []


def differences(fast: PlacementExplanation, slow: PlacementExplanation) -> list[str]:
    """One line for each field, node or rule that differs."""
    lines = []
    for field in fields(PlacementExplanation):
        if not field.compare:
            continue
        fast_value, slow_value = getattr(fast, field.name), getattr(slow, field.name)
        if isinstance(slow_value, dict) and isinstance(fast_value, dict):
            lines += [
                f"{field.name} of {key}: vectorized {fast_value.get(key)}, reference {slow_value.get(key)}"
                for key in sorted(fast_value.keys() | slow_value.keys())
                if fast_value.get(key) != slow_value.get(key)
            ]
        elif fast_value != slow_value:
            lines.append(f"{field.name}: vectorized {fast_value}, reference {slow_value}")
    return lines


def verdicts_agree(case: Case) -> None:
    """A verdict is the short form of the explanation."""
    evaluator = case.evaluator()
    for pod, slow in zip(case.scene.pods, case.expected, strict=True):
        is_short_for(evaluator.evaluate(case.plan, pod, **case.arguments), slow, pod, case.scene)


def is_short_for(verdict: evaluate.Verdict, slow: PlacementExplanation, pod: Pod, scene: Scene) -> None:
    assert verdict.pod_rejection == slow.pod_rejection
    assert verdict.selected == slow.selected
    if slow.pod_rejection is None:
        assert verdict.feasible_count == len(slow.feasible)
        assert verdict.node_count == len(scene.cache.nodes)
        assert dict(verdict.reason_counts()) == counted(slow)
        assert verdict.scaleup_would_not_help() == only_scaleup_no(slow, pod, scene)
    if slow.selected is not None:
        assert verdict.score == slow.totals[slow.selected]


def nominations_agree(case: Case) -> None:
    """Each node must pass the filters with the pods nominated to it, and without them."""
    program, plan, cache = case.program, case.plan, case.scene.cache
    names, evaluator = sorted(cache.nodes), evaluate.Evaluator(cache)
    first, *others = case.scene.pods
    nominated = (
        [(nominee, names[index % 2 % len(names)]) for index, nominee in enumerate(others)] if names else []
    )
    nominated.append((others[0], NodeName("nowhere")))
    arguments = {**case.arguments, "nominated_pods": nominated}

    verdict = evaluator.evaluate(plan, first, **arguments)

    is_short_for(verdict, reference.evaluate(program, first, cache, **arguments), first, case.scene)
    again = evaluator.evaluate(plan, first, **case.arguments)
    is_short_for(again, case.expected[0], first, case.scene)


def counted(explanation: PlacementExplanation) -> dict[str, int]:
    counts: dict[str, int] = {}
    for refusals in explanation.rejections.values():
        for group in refusals[0].event_reasons:
            counts[group] = counts.get(group, 0) + 1
    return counts


def only_scaleup_no(explanation: PlacementExplanation, pod: Pod, scene: Scene) -> bool:
    """Of the nodes whose size, labels and lasting taints suit the pod (or of all, if none does), each is refused by a
    rule with `scaleup no`: so would be a new node of its kind."""
    refused = explanation.rejections
    blocked = {name for name, refusals in refused.items() if any(not refusal.scaleup for refusal in refusals)}

    def suits(name: str) -> bool:
        rules = {refusal.rule for refusal in refused[name]}
        too_small = any(
            refusal.rule == "node_resources_fit" and not refusal.resolvable for refusal in refused[name]
        )
        if "node_affinity" in rules or too_small:
            return False
        value = scene.cache.nodes[NodeName(name)]
        kept = tuple(
            taint
            for taint in value.taints
            if not taint.key.startswith(("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"))
        )
        return "taint_toleration" not in rules or all_tolerated(pod, replace(value, taints=kept))

    kinds = {name for name in refused if suits(name)} or set(refused)
    return bool(refused) and kinds <= blocked


def subset_verdicts_agree(case: Case) -> None:
    """On a subset of the nodes, with an unknown name in it."""
    cache = case.scene.cache
    names, evaluator = sorted(cache.nodes), evaluate.Evaluator(cache)
    for index, pod in enumerate(case.scene.pods):
        among = [*names[index % 2 :: 2], NodeName("nowhere")]
        fast = evaluator.evaluate_nodes(case.plan, pod, among, **case.arguments)
        slow = reference.judge(case.program, pod, cache, among, **case.arguments)
        assert fast == slow


def orders_agree(case: Case) -> None:
    scene = case.scene
    pods = [
        (pod, QueuedPodInfo(scene.now_ns - index * 25 * SECOND_NS, index))
        for index, pod in enumerate(scene.pods)
    ]
    fast, slow = [], []
    for pod, facts in pods:
        space = scene.cache.namespaces.get(pod.namespace)
        key = case.plan.order_key(pod, space, facts, scene.now_ns)[0]
        fast.append(case.plan.order_with_shares(key, pod, space, scene.cache.shares))
        slow.append(reference.order_key(case.program, pod, space, facts, scene.now_ns, scene.cache))
    for left in range(len(pods)):
        for right in range(len(pods)):
            assert (fast[left] < fast[right]) == (slow[left] < slow[right]), (pods[left], pods[right])


def gangs_agree(case: Case) -> None:
    for pod in case.scene.pods:
        space = case.scene.cache.namespaces.get(pod.namespace)
        fast, slow = case.plan.gang(pod, space), reference.gang_terms(case.program, pod, space)
        assert (fast is None) == (slow is None)
        if slow is not None:
            assert {name.name: getattr(fast, name.name) for name in fields(slow)} == {
                name.name: getattr(slow, name.name) for name in fields(slow)
            }


def overlays_agree(case: Case) -> None:
    """An evaluation on an overlay equals one on the changed cluster, and the cluster stays as it was."""
    program, cache, names = case.program, case.scene.cache, sorted(case.scene.cache.nodes)
    evaluator = case.evaluator()
    first, *others = case.scene.pods
    leaving = [uid for name in names[:1] for uid in list(cache.ledger.usage(name).pods)[:1]]

    overlay = evaluator.overlay()
    for uid in leaving:
        overlay.remove_pod(uid)
    if names:
        for index, other in enumerate(others):
            overlay.add_pod(other, names[index % len(names)])
    tried = evaluator.explain(case.plan, first, **case.arguments, overlay=overlay)
    untouched = evaluator.explain(case.plan, first, **case.arguments)

    assert differences(untouched, case.expected[0]) == []
    done, samples = copied(cache), case.scene.samples
    for uid in leaving:
        done.drop_pod(uid)
    if names:
        for index, other in enumerate(others):
            done.assume(other, names[index % len(names)])
            space = cache.namespaces.get(other.namespace)
            samples = reference.samples_after_placement(
                program, samples, other, names[index % len(names)], space
            )
    slow = reference.evaluate(program, first, done, **{**case.arguments, "samples": samples})
    assert differences(tried, slow) == []


def changes_are_followed(case: Case) -> None:
    """An evaluator that is asked after each change agrees with the reference each time."""
    cache, plan = copied(case.scene.cache), case.plan
    evaluator = evaluate.Evaluator(cache)
    evaluator.build_columns(plan)
    rng = ClusterRandom(len(cache.nodes) + len(cache.pods))
    first, *others = case.scene.pods
    for step, other in enumerate(others * 3):
        arguments = {**case.arguments, "now_ns": case.scene.now_ns + step * 40 * SECOND_NS}
        for pod in (first, other):
            verdict = evaluator.evaluate(plan, pod, **arguments)
            slow = reference.evaluate(case.program, pod, cache, **arguments)
            assert verdict.selected == slow.selected, step
            assert differences(evaluator.explain(plan, pod, **arguments), slow) == [], step
        change(cache, other, rng)


def change(cache: ClusterCache, pod: Pod, rng: ClusterRandom) -> None:
    """A random change by the API server or by the scheduler."""
    names = sorted(cache.nodes)
    if not names:
        return
    name = rng.choice(names)
    match rng.randrange(8):
        case 0:
            cache.drop_node(name)
        case 1:
            cache.put_node(random_node(rng, name))
        case 2 if cache.ledger.placement(pod.uid) is None:
            cache.assume(pod, name)
        case 4 if cache.ledger.usage(name).pods:
            observed = cache.pods.get(next(iter(cache.ledger.usage(name).pods)))
            if observed is not None and observed.node is not None:
                cache.put_pod(replace(observed, pod=replace(observed.pod, ready=not observed.pod.ready)))
        case 5:
            cache.put_namespace(Namespace(rng.choice(NAMESPACES), rng.labels(), {}))
        case 6:
            cache.put_pod(pending(random_pod(rng, f"waiting-{rng.randrange(4)}")))
        case 7 if cache.pods:
            cache.put_pod(replace(cache.pods[rng.choice(sorted(cache.pods))], deleting=True))
        case 3 if cache.ledger.usage(name).pods:
            cache.drop_pod(next(iter(cache.ledger.usage(name).pods)))
        case _:
            cache.put_node(random_node(rng, rng.choice(NODE_NAMES)))


def copied(cache: ClusterCache) -> ClusterCache:
    return world(
        cache.nodes.values(),
        cache.pods.values(),
        cache.namespaces.values(),
        cache.selector_owners.by_key.values(),
    )


PROPERTIES: tuple[Callable[[Case], None], ...] = (
    explanations_agree,
    verdicts_agree,
    orders_agree,
    gangs_agree,
    subset_verdicts_agree,
    overlays_agree,
    nominations_agree,
    changes_are_followed,
)


def all_agree(program: Program, scene: Scene) -> None:
    case = Case(program, scene)
    for agree in PROPERTIES:
        agree(case)


@pytest.mark.parametrize("name", CORNERS)
@SEARCH
@given(scene=scenes(pods=3))
def test_evaluation_and_reference_agree_in_every_corner_of_the_language(name: str, scene: Scene) -> None:
    all_agree(corner(name), scene)


@settings(SEARCH, max_examples=50)
@given(text=policies(), scene=scenes(pods=3))
def test_evaluation_and_reference_agree_on_generated_policies(text: str, scene: Scene) -> None:
    all_agree(checked(text), scene)
