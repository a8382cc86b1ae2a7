"""Placed pods that are counted in steps, while pods come and go and nodes change, give the verdicts of those counted at once."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from policysched.cluster import cache
from policysched.cluster.cache import ClusterCache
from policysched.evaluate import Evaluator, NotCounted
from policysched.evaluate import compile as compile_program
from policysched.evaluate.columns import columns, placed_pod_counts
from policysched.evaluate.columns.placed_pod_counts import PlacedPodCounts, _PlacedInPreparation
from policysched.evaluate.columns.placed_pods import PlacedPods
from policysched.lang.ir.program import Program
from policysched.model.namespaces import Namespace
from policysched.model.pods import QueuedPodInfo
from tests.builders import node, placed, pod
from tests.evaluate.clusters import Scene, scenes
from tests.evaluate.evaluation import evaluated, later
from tests.evaluate.histories import play, seeds, twin
from tests.evaluate.test_hostile import cluster
from tests.hostile import EVERYBODY, anti_affinity
from tests.reference.checked import program

SEARCH = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
HUNT = settings(
    max_examples=1000,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
    derandomize=True,
    database=None,
)


def among_pods() -> Program:
    return program(
        "filter inter_pod_affinity",
        "filter pod_topology_spread",
        "score inter_pod_affinity weight 2",
        "score pod_topology_spread weight 2",
    )


@pytest.fixture(autouse=True)
def smallest_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_pod_counts, "ITEMS_PER_STEP", 1)
    monkeypatch.setattr(columns, "ITEMS_PER_STEP", 1)
    monkeypatch.setattr(columns, "NODES_PER_STEP", 1)
    monkeypatch.setattr(cache, "_FEW_CHANGED_NODES", 0)


def steps_equal_at_once(scene: Scene, seed: int) -> None:
    plan, rng, evaluator = compile_program(among_pods()), Random(seed), Evaluator(scene.cache)
    steps = evaluator.build_columns_in_steps(plan)
    for number, _ in enumerate(play(scene.cache, seed, changes=16)):
        for _ in range(rng.randrange(3)):
            next(steps, None)
        if rng.randrange(3) == 0:
            scene.cache.put_namespace(Namespace(f"ns{number % 3}", {"team": str(number)}, {}))
        if rng.randrange(2):
            evaluator.refresh_slice()
        elif rng.randrange(2):
            _ = evaluator.version  # refreshes, as a decision of another policy does
    for _ in steps:
        pass
    now, fresh = later(scene, 40), Evaluator(twin(scene.cache))
    for each in scene.pods:
        assert evaluated(evaluator, plan, each, now) == evaluated(fresh, plan, each, now)


def search(how: settings) -> None:
    @how
    @given(scene=scenes(placed_max=6), seed=seeds)
    def check(scene: Scene, seed: int) -> None:
        steps_equal_at_once(scene, seed)

    check()


def test_pods_counted_in_steps_equal_pods_counted_at_once() -> None:
    search(SEARCH)


def test_a_label_that_nodes_get_meanwhile_is_a_domain_for_pods_that_are_counted_already() -> None:
    apart = anti_affinity([{**EVERYBODY, "topologyKey": "rack"}])
    scene = ClusterCache()
    for name in ("n0", "n1"):
        scene.put_node(node(name))
        scene.put_pod(placed(pod(f"{name}-pod", spec=apart), name))
    evaluator, plan = Evaluator(scene), compile_program(among_pods())
    evaluator.build_columns(plan)
    assert evaluator.refresh_slice(), "one of two pods is counted"

    for name in ("n0", "n1"):
        scene.put_node(node(name, labels={"rack": name}))
    while evaluator.refresh_slice():
        pass
    verdict = evaluator.evaluate(plan, pod("new"), now_ns=0, facts=QueuedPodInfo(0, 0), samples={})

    assert verdict.selected is None


def test_a_pod_that_cannot_be_counted_is_told_at_each_slice() -> None:
    scene = cluster(2)
    scene.put_pod(placed(pod("first"), "n0"))
    scene.put_pod(placed(pod("second"), "n1"))
    evaluator, right = Evaluator(scene), PlacedPods.adjust
    evaluator.build_columns(compile_program(among_pods()))

    def raising(self: PlacedPods, row: int, each: object, delta: int) -> None:
        if getattr(each, "name", "") == "second":
            raise ValueError("planted")
        right(self, row, each, delta)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PlacedPods, "adjust", raising)
        for _ in range(2):
            with pytest.raises(NotCounted):
                while evaluator.refresh_slice():
                    pass


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────


def _only_whole_rows(self: _PlacedInPreparation, row: int, pod: object, delta: int) -> bool:
    return row < self.row


BUGS: dict[str, tuple[object, str, Callable[..., object]]] = {
    "changes of rows that are not counted yet count": (
        _PlacedInPreparation,
        "has_counted",
        lambda *_: True,
    ),
    "no change counts before the end": (_PlacedInPreparation, "has_counted", lambda *_: False),
    "a pod that leaves a row in progress stays counted": (
        _PlacedInPreparation,
        "has_counted",
        _only_whole_rows,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, name, planted = BUGS[bug]
    monkeypatch.setattr(holder, name, planted)

    with pytest.raises((AssertionError, NotCounted)):
        search(HUNT)


def test_a_planted_loss_of_new_topology_keys_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlacedPodCounts, "topology_keys_appeared", lambda *_: None)

    with pytest.raises(AssertionError):
        test_a_label_that_nodes_get_meanwhile_is_a_domain_for_pods_that_are_counted_already()
