"""The load that metrics assume for pods that samples do not contain yet, row by row and on overlays."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from policysched.cluster.cache import ClusterCache
from policysched.cluster.metric_samples import MetricSamples, Sample, Samples
from policysched.evaluate import Evaluator, Plan, evaluation
from policysched.evaluate import compile as compile_program
from policysched.evaluate.columns.metric_column import MetricColumn
from policysched.evaluate.kernel import Dependency
from policysched.evaluate.vector.machine import VectorMachine
from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod, QueuedPodInfo
from tests import reference
from tests.builders import node, pod, world
from tests.evaluate.clusters import Scene, scene_of
from tests.evaluate.policies import corner
from tests.evaluate.test_reference_property import Case, differences, overlays_agree
from tests.reference.checked import metric, program

NOW_NS = 1_000 * 10**9
IDLE_PLAN = compile_program(
    program(
        'input traffic: bandwidth = pod.annotations["net"] default 40Mbps invalid default',
        metric("rx", "bandwidth", "bit/s", "assume = traffic"),
        "filter cool require rx < 1Gbps missing reject",
        "score idle weight 1 lower rx normalize range(0Mbps, 1Gbps) missing worst",
    )
)


@pytest.fixture(autouse=True)
def always_catch_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never rebuild: in a small cluster every change is a large share of it."""
    monkeypatch.setattr(evaluation, "_REBUILD_FRACTION", 0)


# ── the property ───────────────────────────────────────────────────────────────────────────────────────────────────


def placements_are_followed(policy: Program, scene: Scene) -> None:
    """An evaluator that is asked after each placement agrees with the reference each time."""
    cache, names = scene.cache, sorted(scene.cache.nodes)
    alive: dict[str, dict[NodeName, float]] = {name: dict(of.assumed) for name, of in scene.samples.items()}
    samples = {name: replace(of, assumed=alive[name]) for name, of in scene.samples.items()}
    evaluator, compiled = Evaluator(cache), compile_program(policy)
    evaluator.build_columns(compiled)
    first, *others = scene.pods
    for number, other in enumerate(others):
        arguments = {"now_ns": scene.now_ns, "facts": scene.facts, "samples": samples}
        slow = reference.evaluate(policy, first, cache, **arguments)
        verdict = evaluator.evaluate(compiled, first, **arguments)
        assert (verdict.selected, verdict.feasible_count) == (slow.selected, len(slow.feasible))
        assert verdict.score == (0 if slow.selected is None else slow.totals[slow.selected])
        assert differences(evaluator.explain(compiled, first, **arguments), slow) == []
        if names:
            name = names[number % len(names)]
            cache.assume(other, name)
            space = cache.namespaces.get(other.namespace)
            for metric_name, of in reference.samples_after_placement(
                policy, samples, other, name, space
            ).items():
                alive[metric_name].update(of.assumed)


@pytest.mark.parametrize("name", ("assumed", "metrics"))
def test_a_placement_changes_its_row_and_no_other(name: str) -> None:
    for number in range(60):
        placements_are_followed(corner(name), scene_of(number, pods=5))


def without_assumed_load(right: Callable[..., None]) -> Callable[..., None]:
    """A column that ignores the assumed load of its metric."""
    return lambda column, metric, columns: right(column, replace(metric, assumed_load=None), columns)


def without_usage(right: Callable[..., Dependency]) -> Callable[..., Dependency]:
    return lambda machine, expr: right(machine, expr) & ~Dependency.USAGE


BUGS: dict[str, tuple[object, str, Callable[..., object]]] = {
    "assumed load is not read": (MetricColumn, "__init__", without_assumed_load),
    "a placement does not reevaluate rules that read the metric": (
        VectorMachine,
        "_depends_on",
        without_usage,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, plant = BUGS[bug]

    monkeypatch.setattr(owner, name, plant(getattr(owner, name)))

    with pytest.raises(AssertionError):
        for number in range(60):
            placements_are_followed(corner("assumed"), scene_of(number, pods=5))


def test_overlays_agree_member_by_member() -> None:
    for number in range(60):
        overlays_agree(Case(corner("assumed"), scene_of(number, pods=4)))


# ── by example ─────────────────────────────────────────────────────────────────────────────────────────────────────


def two_nodes() -> tuple[ClusterCache, Samples]:
    """`idle` receives nothing, `busy` receives 100 Mbps."""
    values = {"idle": 0.0, "busy": 1e8}
    samples = {NodeName(name): Sample(value, NOW_NS) for name, value in values.items()}
    return world([node(name) for name in values]), {"rx": MetricSamples(samples, NOW_NS)}


def selected_node(
    evaluator: Evaluator, new_pod: Pod, samples: Samples, *, plan: Plan = IDLE_PLAN, **more: object
) -> str | None:
    arguments = {"now_ns": NOW_NS, "facts": QueuedPodInfo(0, 0), "samples": samples, **more}
    return evaluator.evaluate(plan, new_pod, **arguments).selected


def test_members_of_one_gang_do_not_all_go_to_the_idle_node() -> None:
    cache, samples = two_nodes()
    evaluator = Evaluator(cache)
    overlay = evaluator.overlay()

    places = []
    for index in range(6):
        member = pod(f"member-{index}")
        name = selected_node(evaluator, member, samples, overlay=overlay)
        overlay.add_pod(member, name)
        places.append(name)

    assert places[:3] == ["idle", "idle", "idle"]
    assert sorted(places) == ["busy"] * 2 + ["idle"] * 4


def test_a_member_removed_from_an_overlay_no_longer_counts() -> None:
    cache, samples = two_nodes()
    evaluator = Evaluator(cache)
    overlay = evaluator.overlay()
    heavy = pod("heavy", annotations={"net": "500Mbps"})

    overlay.add_pod(heavy, NodeName("idle"))
    with_it = selected_node(evaluator, pod("next"), samples, overlay=overlay)
    overlay.remove_pod(heavy.uid)
    without_it = selected_node(evaluator, pod("next"), samples, overlay=overlay)

    assert (with_it, without_it) == ("busy", "idle")


def test_a_discarded_overlay_is_not_kept_by_another_policy() -> None:
    cache, samples = two_nodes()
    evaluator = Evaluator(cache)
    another = compile_program(replace(IDLE_PLAN.program, name="another"))

    selected_node(evaluator, pod("one"), samples, overlay=evaluator.overlay())
    last = evaluator.overlay()
    selected_node(evaluator, pod("two"), samples, overlay=last, plan=another)

    assert [load.overlay for load in evaluator._snapshots._overlay_loads.values()] == [last]


def test_an_overlay_does_not_change_the_samples() -> None:
    cache, samples = two_nodes()
    evaluator = Evaluator(cache)
    overlay = evaluator.overlay()
    overlay.add_pod(pod("heavy", annotations={"net": "500Mbps"}), NodeName("idle"))

    with_overlay = selected_node(evaluator, pod("next"), samples, overlay=overlay)
    without_overlay = selected_node(evaluator, pod("next"), samples)

    assert (with_overlay, without_overlay) == ("busy", "idle")
    assert samples["rx"].assumed == {}


def test_a_first_pod_of_an_overlay_adds_fractions_where_integers_were_counted_before() -> None:
    cache = world([node("n0", labels={"zone": "a"}, cpu="4"), node("n1", labels={"zone": "b"}, cpu="4")], [])
    by_zone = program(
        'score whole weight 1 lower (count(pods in "zone" where other.labels["gen"] != "g") else 0) normalize max',
        'score parts weight 1 lower (sum(other.requests.cpu * 0.1 over pods in "zone" where other.labels["gen"] != "g")'
        " else 0) normalize max",
    )
    plan, evaluator = compile_program(by_zone), Evaluator(cache)
    arguments = {"now_ns": 0, "facts": QueuedPodInfo(0, 0), "samples": dict[str, MetricSamples]()}
    evaluator.explain(plan, pod("first"), **arguments)

    overlay = evaluator.overlay()
    overlay.add_pod(pod("added", labels={"gen": "a"}, cpu="333m"), NodeName("n0"))
    tried = evaluator.explain(plan, pod("first"), **arguments, overlay=overlay)
    cache.assume(pod("added", labels={"gen": "a"}, cpu="333m"), "n0")
    done = evaluator.explain(plan, pod("first"), **arguments)

    assert tried.scores["parts"] == done.scores["parts"]
    assert tried.scores["parts"]["n0"].raw == 333 * 0.1
