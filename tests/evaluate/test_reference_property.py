"""The vectorized evaluation agrees with the reference implementation on every pod and node."""

from collections.abc import Callable
from dataclasses import fields, replace

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
    Dice,
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


def vectorized(program: Program, scene: Scene) -> list[PlacementExplanation]:
    evaluator, compiled = evaluate.Evaluator(scene.cache), evaluate.compile(program)
    evaluator.build_columns(compiled)
    return [
        evaluator.explain(compiled, pod, now_ns=scene.now_ns, facts=scene.facts, samples=scene.samples)
        for pod in scene.pods
    ]


def plain(program: Program, scene: Scene) -> list[PlacementExplanation]:
    return [
        reference.evaluate(
            program, pod, scene.cache, now_ns=scene.now_ns, facts=scene.facts, samples=scene.samples
        )
        for pod in scene.pods
    ]


def explanations_agree(program: Program, scene: Scene) -> None:
    for fast, slow in zip(vectorized(program, scene), plain(program, scene), strict=True):
        assert differences(fast, slow) == []


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


def verdicts_agree(program: Program, scene: Scene) -> None:
    """A verdict is the short form of the explanation."""
    evaluator, compiled = evaluate.Evaluator(scene.cache), evaluate.compile(program)
    evaluator.build_columns(compiled)
    for pod, slow in zip(scene.pods, plain(program, scene), strict=True):
        verdict = evaluator.evaluate(
            compiled, pod, now_ns=scene.now_ns, facts=scene.facts, samples=scene.samples
        )
        is_short_for(verdict, slow, pod, scene)


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


def nominations_agree(program: Program, scene: Scene) -> None:
    """Each node must pass the filters with the pods nominated to it, and without them."""
    names = sorted(scene.cache.nodes)
    evaluator, compiled = evaluate.Evaluator(scene.cache), evaluate.compile(program)
    first, *others = scene.pods
    nominated = (
        [(nominee, names[index % 2 % len(names)]) for index, nominee in enumerate(others)] if names else []
    )
    nominated.append((others[0], NodeName("nowhere")))
    arguments = {
        "now_ns": scene.now_ns,
        "facts": scene.facts,
        "samples": scene.samples,
        "nominated_pods": nominated,
    }

    verdict = evaluator.evaluate(compiled, first, **arguments)

    is_short_for(verdict, reference.evaluate(program, first, scene.cache, **arguments), first, scene)
    without_nominations = {**arguments, "nominated_pods": ()}
    again = evaluator.evaluate(compiled, first, **without_nominations)
    is_short_for(again, reference.evaluate(program, first, scene.cache, **without_nominations), first, scene)


def counted(explanation: PlacementExplanation) -> dict[str, int]:
    counts: dict[str, int] = {}
    for refusals in explanation.rejections.values():
        for group in refusals[0].event_reasons:
            counts[group] = counts.get(group, 0) + 1
    return counts


def only_scaleup_no(explanation: PlacementExplanation, pod: Pod, scene: Scene) -> bool:
    """Of the nodes whose labels and lasting taints suit the pod (or of all, if none does), each is refused by a rule
    with `scaleup no`: so would be a new node of its kind."""
    refused = explanation.rejections
    blocked = {name for name, refusals in refused.items() if any(not refusal.scaleup for refusal in refusals)}

    def suits(name: str) -> bool:
        rules = {refusal.rule for refusal in refused[name]}
        if "node_affinity" in rules:
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


def subset_verdicts_agree(program: Program, scene: Scene) -> None:
    """On a subset of the nodes, with an unknown name in it."""
    evaluator, compiled = evaluate.Evaluator(scene.cache), evaluate.compile(program)
    names = sorted(scene.cache.nodes)
    arguments = {"now_ns": scene.now_ns, "facts": scene.facts, "samples": scene.samples}
    for index, pod in enumerate(scene.pods):
        among = [*names[index % 2 :: 2], NodeName("nowhere")]
        fast = evaluator.evaluate_nodes(compiled, pod, among, **arguments)
        slow = reference.judge(program, pod, scene.cache, among, **arguments)
        assert fast == slow


def orders_agree(program: Program, scene: Scene) -> None:
    compiled = evaluate.compile(program)
    pods = [
        (pod, QueuedPodInfo(scene.now_ns - index * 25 * SECOND_NS, index))
        for index, pod in enumerate(scene.pods)
    ]
    fast, slow = [], []
    for pod, facts in pods:
        space = scene.cache.namespaces.get(pod.namespace)
        key = compiled.order_key(pod, space, facts, scene.now_ns)[0]
        fast.append(compiled.order_with_shares(key, pod, space, scene.cache.shares))
        slow.append(reference.order_key(program, pod, space, facts, scene.now_ns, scene.cache))
    for left in range(len(pods)):
        for right in range(len(pods)):
            assert (fast[left] < fast[right]) == (slow[left] < slow[right]), (pods[left], pods[right])


def gangs_agree(program: Program, scene: Scene) -> None:
    compiled = evaluate.compile(program)
    for pod in scene.pods:
        space = scene.cache.namespaces.get(pod.namespace)
        fast, slow = compiled.gang(pod, space), reference.gang_terms(program, pod, space)
        assert (fast is None) == (slow is None)
        if slow is not None:
            assert {name.name: getattr(fast, name.name) for name in fields(slow)} == {
                name.name: getattr(slow, name.name) for name in fields(slow)
            }


def overlays_agree(program: Program, scene: Scene) -> None:
    """An evaluation on an overlay equals one on the changed cluster, and the cluster stays as it was."""
    cache, names = scene.cache, sorted(scene.cache.nodes)
    evaluator, compiled = evaluate.Evaluator(cache), evaluate.compile(program)
    evaluator.build_columns(compiled)
    first, *others = scene.pods
    leaving = [uid for name in names[:1] for uid in list(cache.ledger.usage(name).pods)[:1]]
    arguments = {"now_ns": scene.now_ns, "facts": scene.facts, "samples": scene.samples}

    overlay = evaluator.overlay()
    for uid in leaving:
        overlay.remove_pod(uid)
    if names:
        for index, other in enumerate(others):
            overlay.add_pod(other, names[index % len(names)])
    tried = evaluator.explain(compiled, first, **arguments, overlay=overlay)
    untouched = evaluator.explain(compiled, first, **arguments)

    assert differences(untouched, reference.evaluate(program, first, cache, **arguments)) == []
    done, samples = copied(cache), scene.samples
    for uid in leaving:
        done.drop_pod(uid)
    if names:
        for index, other in enumerate(others):
            done.assume(other, names[index % len(names)])
            space = cache.namespaces.get(other.namespace)
            samples = reference.samples_after_placement(
                program, samples, other, names[index % len(names)], space
            )
    assert (
        differences(tried, reference.evaluate(program, first, done, **{**arguments, "samples": samples}))
        == []
    )


def changes_are_followed(program: Program, scene: Scene) -> None:
    """An evaluator that is asked after each change agrees with the reference each time."""
    cache = copied(scene.cache)
    evaluator, compiled = evaluate.Evaluator(cache), evaluate.compile(program)
    evaluator.build_columns(compiled)
    dice = Dice(len(cache.nodes) + len(cache.pods))
    first, *others = scene.pods
    for step, other in enumerate(others * 3):
        arguments = {
            "now_ns": scene.now_ns + step * 40 * SECOND_NS,
            "facts": scene.facts,
            "samples": scene.samples,
        }
        for pod in (first, other):
            verdict = evaluator.evaluate(compiled, pod, **arguments)
            slow = reference.evaluate(program, pod, cache, **arguments)
            assert verdict.selected == slow.selected, step
            assert differences(evaluator.explain(compiled, pod, **arguments), slow) == [], step
        change(cache, other, dice)


def change(cache: ClusterCache, pod: Pod, dice: Dice) -> None:
    """A random change by the API server or by the scheduler."""
    names = sorted(cache.nodes)
    if not names:
        return
    name = dice.choice(names)
    match dice.randrange(8):
        case 0:
            cache.drop_node(name)
        case 1:
            cache.put_node(random_node(dice, name))
        case 2 if cache.ledger.placement(pod.uid) is None:
            cache.assume(pod, name)
        case 5:
            cache.put_namespace(Namespace(dice.choice(NAMESPACES), dice.labels(), {}))
        case 6:
            cache.put_pod(pending(random_pod(dice, f"waiting-{dice.randrange(4)}")))
        case 7 if cache.pods:
            cache.put_pod(replace(cache.pods[dice.choice(sorted(cache.pods))], deleting=True))
        case 3 if cache.ledger.usage(name).pods:
            cache.drop_pod(next(iter(cache.ledger.usage(name).pods)))
        case _:
            cache.put_node(random_node(dice, dice.choice(NODE_NAMES)))


def copied(cache: ClusterCache) -> ClusterCache:
    return world(
        cache.nodes.values(), cache.pods.values(), cache.namespaces.values(), cache.pod_sets.by_key.values()
    )


PROPERTIES: tuple[Callable[[Program, Scene], None], ...] = (
    explanations_agree,
    verdicts_agree,
    orders_agree,
    gangs_agree,
    subset_verdicts_agree,
    overlays_agree,
    nominations_agree,
    changes_are_followed,
)


@pytest.mark.parametrize("name", CORNERS)
@SEARCH
@given(scene=scenes(pods=3))
def test_evaluation_and_reference_agree_in_every_corner_of_the_language(name: str, scene: Scene) -> None:
    for agree in PROPERTIES:
        agree(corner(name), scene)


@settings(SEARCH, max_examples=80)
@given(text=policies(), scene=scenes(pods=3))
def test_evaluation_and_reference_agree_on_generated_policies(text: str, scene: Scene) -> None:
    for agree in PROPERTIES:
        agree(checked(text), scene)
