"""Helpers that call an Evaluator, and verdicts as plain values to compare."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from policysched.evaluate import Evaluator, Overlay, Plan, Verdict
from policysched.lang.ir.program import Program
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod
from tests.evaluate.clusters import Scene
from tests.reference import samples_after_placement


@dataclass(frozen=True)
class Answer:
    """A verdict as plain values."""

    pod_rejection: str | None
    selected: str | None
    score: int
    feasible_count: int
    node_count: int
    counts: Mapping[str, int]
    only_scaleup_no: bool
    wakes: frozenset[ClusterEvent]


def answer(verdict: Verdict) -> Answer:
    return Answer(
        verdict.pod_rejection,
        verdict.selected,
        verdict.score,
        verdict.feasible_count,
        verdict.node_count,
        dict(verdict.reason_counts()),
        verdict.scaleup_would_not_help(),
        verdict.requeue_events(),
    )


def evaluated(
    evaluator: Evaluator, plan: Plan, pod: Pod, scene: Scene, overlay: Overlay | None = None
) -> Answer:
    return answer(
        evaluator.evaluate(
            plan, pod, now_ns=scene.now_ns, facts=scene.facts, samples=scene.samples, overlay=overlay
        )
    )


def explained(
    evaluator: Evaluator, plan: Plan, pod: Pod, scene: Scene, overlay: Overlay | None = None
) -> PlacementExplanation:
    return evaluator.explain(
        plan, pod, now_ns=scene.now_ns, facts=scene.facts, samples=scene.samples, overlay=overlay
    )


def assuming(scene: Scene, program: Program, placed: Iterable[tuple[Pod, NodeName]]) -> Scene:
    """The scene with the load that its metrics assume for pods placed since."""
    samples = scene.samples
    for pod, name in placed:
        samples = samples_after_placement(
            program, samples, pod, name, scene.cache.namespaces.get(pod.namespace)
        )
    return replace(scene, samples=samples)


def without_filter(program: Program, index: int) -> Program:
    filters = program.rules.filters
    return replace(program, rules=replace(program.rules, filters=filters[:index] + filters[index + 1 :]))


def later(scene: Scene, seconds: int) -> Scene:
    return replace(scene, now_ns=scene.now_ns + seconds * 10**9)
