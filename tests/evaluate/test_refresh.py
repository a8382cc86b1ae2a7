"""Cached evaluations equal those of a new evaluator: after changes, between similar pods, and on overlays."""

from collections.abc import Callable, Hashable

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from policysched.evaluate import Evaluator, evaluation
from policysched.evaluate import compile as compile_program
from policysched.evaluate.columns import packed_lists, view
from policysched.evaluate.columns.columns import Columns
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.packed_lists import GatheredElements
from policysched.evaluate.columns.view import View
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.evaluation_cache import OverlayEvaluation
from policysched.evaluate.plan.plan import Plan
from policysched.evaluate.plan.read_set import ReadSet
from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName
from policysched.model.pods import QueuedPodInfo
from tests import builders
from tests.conformance.kube_default import kube_default
from tests.evaluate.clusters import Scene, scenes
from tests.evaluate.evaluation import assuming, evaluated, explained, later
from tests.evaluate.histories import play, seeds, twin
from tests.evaluate.policies import CORNERS, corner

SEARCH = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
HUNT = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
    derandomize=True,  # a planted bug is found by the same example each time
    database=None,
)
MIXED = (
    "comparisons",
    "metrics",
    "counting",
    "time",
    "layers",
    "built-ins by condition",
    "outage",
    "waiting for metrics",
)

FACTS, NOW_NS = QueuedPodInfo(queued_ns=0, attempts=0), 10**18

Property = Callable[[Program, Plan, Scene, int], None]
"""The plan is the program's, compiled once for many scenes."""


@pytest.fixture(autouse=True)
def row_by_row_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a small cluster, one change is a large fraction and would rebuild everything."""
    monkeypatch.setattr(evaluation, "_REBUILD_FRACTION", 0)
    monkeypatch.setattr(packed_lists, "_CACHED_ROWS_MIN", 1)
    monkeypatch.setattr(view, "_FEW_ROWS_MAX", 0)


# ── the properties ─────────────────────────────────────────────────────────────────────────────────────────────────


def refreshing_equals_rebuilding(program: Program, plan: Plan, scene: Scene, seed: int) -> None:
    cached = Evaluator(scene.cache)
    cached.build_columns(plan)
    for number, _ in enumerate(play(scene.cache, seed, changes=8)):
        now, fresh = later(scene, number * 7), Evaluator(twin(scene.cache))
        for pod in scene.pods:
            assert evaluated(cached, plan, pod, now) == evaluated(fresh, plan, pod, now)


def sharing_equals_evaluating_alone(program: Program, plan: Plan, scene: Scene, seed: int) -> None:
    cached = Evaluator(scene.cache)
    for pod in scene.pods:
        alone = Evaluator(twin(scene.cache))
        assert evaluated(cached, plan, pod, scene) == evaluated(alone, plan, pod, scene)


def an_overlay_equals_placing(program: Program, plan: Plan, scene: Scene, seed: int) -> None:
    evaluator = Evaluator(scene.cache)
    names = sorted(scene.cache.nodes)
    overlay = evaluator.overlay()
    removed = sorted(uid for uid, pod in scene.cache.pods.items() if pod.node in names)[: seed % 3]
    added = [(pod, names[(seed + index) % len(names)]) for index, pod in enumerate(scene.pods[1:]) if names]
    for uid in removed:
        overlay.remove_pod(uid)
        evaluated(evaluator, plan, scene.pods[0], scene, overlay)
    for pod, name in added:
        overlay.add_pod(pod, name)
        evaluated(evaluator, plan, scene.pods[0], scene, overlay)
    remaining = [uid for uid, pod in scene.cache.pods.items() if pod.node in names and uid not in removed]
    for uid in sorted(remaining)[: seed % 2]:
        overlay.remove_pod(uid)
        evaluated(evaluator, plan, scene.pods[0], scene, overlay)
        overlay.restore_pod(uid)
    hypothetical = evaluated(evaluator, plan, scene.pods[0], scene, overlay)
    explanation = explained(evaluator, plan, scene.pods[0], scene, overlay)

    for uid in removed:
        scene.cache.drop_pod(uid)
    for pod, name in added:
        scene.cache.assume(pod, name)
    placed = assuming(scene, program, added)

    assert hypothetical == evaluated(Evaluator(scene.cache), plan, scene.pods[0], placed)
    assert explanation == explained(Evaluator(scene.cache), plan, scene.pods[0], placed)


def overlays_in_turn_equal_new_ones(program: Program, plan: Plan, scene: Scene, seed: int) -> None:
    """As when one gang is attempted after another, whether the one before is placed or not."""
    cached = Evaluator(scene.cache)
    cached.build_columns(plan)
    first, *others = scene.pods
    for number, _ in enumerate(play(scene.cache, seed, changes=6)):
        fresh, names = Evaluator(twin(scene.cache)), sorted(scene.cache.nodes)
        overlays = [(evaluator, evaluator.overlay()) for evaluator in (cached, fresh)]
        added = [other for index, other in enumerate(others) if names and seed >> number + index & 1]
        for index in range(len(added) + 1):
            if index == len(added) or index >= seed % 3:
                kept, new = [evaluated(of, plan, first, scene, overlay) for of, overlay in overlays]
                assert kept == new
            for _, overlay in overlays if index < len(added) else ():
                overlay.add_pod(added[index], names[(seed + number + index) % len(names)])


@pytest.mark.parametrize("name", CORNERS)
def test_overlays_in_turn_equal_new_ones(name: str) -> None:
    _search(overlays_in_turn_equal_new_ones, corner(name), scenes(pods=4, placed_max=4))


@pytest.mark.parametrize("name", CORNERS)
def test_a_refreshed_evaluator_equals_a_rebuilt_one(name: str) -> None:
    _search(refreshing_equals_rebuilding, corner(name), scenes(placed_max=4))


@pytest.mark.parametrize("name", CORNERS)
def test_a_shared_evaluation_equals_one_of_each_pod_alone(name: str) -> None:
    _search(sharing_equals_evaluating_alone, corner(name), scenes(pods=6))


@pytest.mark.parametrize("name", CORNERS)
def test_an_overlay_equals_the_cluster_with_its_pods_placed(name: str) -> None:
    _search(an_overlay_equals_placing, corner(name), scenes())


def _search(holds: Property, program: Program, of: st.SearchStrategy[Scene]) -> None:
    plan = compile_program(program)

    @SEARCH
    @given(scene=of, seed=seeds)
    def search(scene: Scene, seed: int) -> None:
        holds(program, plan, scene, seed)

    search()


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────


def _caught(of: Property, corners: tuple[str, ...] = MIXED) -> bool:
    @HUNT
    @given(name=st.sampled_from(corners), scene=scenes(pods=5), seed=seeds)
    def hunt(name: str, scene: Scene, seed: int) -> None:
        of(corner(name), compile_program(corner(name)), scene, seed)

    try:
        hunt()
    except AssertionError:
        return True
    return False


def _nothing(*_: object) -> None:
    """Does nothing."""


def test_a_planted_placement_that_refreshes_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Columns, "_refresh_usage", _nothing)

    assert _caught(refreshing_equals_rebuilding)


def test_a_planted_miss_of_changed_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Evaluation, "_update", _nothing)

    assert _caught(refreshing_equals_rebuilding)


def test_a_planted_coarse_usage_key_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    usage_key = Evaluation._usage_key

    def coarse(self: Evaluation, view: View) -> Hashable:
        return None if usage_key(self, view) is None else "any"

    monkeypatch.setattr(Evaluation, "_usage_key", coarse)

    assert _caught(refreshing_equals_rebuilding, ("built-ins by condition",))


def test_a_planted_incomplete_read_set_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadSet, "key_without_claims", _nothing)

    assert _caught(sharing_equals_evaluating_alone)


def test_a_planted_overlay_that_removes_no_pod_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Overlay, "remove_pod", _nothing)

    assert _caught(an_overlay_equals_placing)


def test_a_planted_rest_of_the_overlay_before_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = OverlayEvaluation.leave

    def forget(self: OverlayEvaluation, overlay: Overlay) -> bool:
        left = leave(self, overlay)
        self._rows_left = frozenset()
        return left

    monkeypatch.setattr(OverlayEvaluation, "leave", forget)

    assert _caught(overlays_in_turn_equal_new_ones, ("built-ins by condition",))


def test_facts_of_the_overlay_before_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pod is added to each overlay, so that both have the same number of changes, which is all that is compared for a pod
    with many terms; the second on the other node."""
    monkeypatch.setattr("policysched.builtins.inter_pod_affinity.kernel._TALLIES_PER_POD_MAX", -1)
    assert _where_a_lonely_pod_fits() == ["b", "a"]

    monkeypatch.setattr(OverlayEvaluation, "_cluster_facts", None)
    assert _where_a_lonely_pod_fits() == ["b", "b"], "planted: the result of the first overlay"


def _where_a_lonely_pod_fits() -> list[NodeName | None]:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    lonely = builders.pod("lonely", spec={"affinity": apart})
    cache = builders.world(
        nodes=[builders.node(name, labels={"kubernetes.io/hostname": name}) for name in "ab"]
    )
    evaluator, plan = Evaluator(cache), compile_program(kube_default())
    selected = []
    for name in ("a", "b"):
        overlay = evaluator.overlay()
        overlay.add_pod(builders.pod("web", labels={"app": "web"}), NodeName(name))
        verdict = evaluator.evaluate(plan, lonely, now_ns=NOW_NS, facts=FACTS, samples={}, overlay=overlay)
        selected.append(verdict.selected)
    return selected


def test_a_planted_loss_of_rows_that_still_differ_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forget(self: Overlay, name: NodeName, by: int) -> None:
        row = self._columns.row(name)
        if by < 0 and row is not None:
            self._usages.pop(row, None)

    monkeypatch.setattr(Overlay, "_count_change", forget)

    assert _caught(an_overlay_equals_placing, ("waiting for metrics", "counting"))


def test_a_planted_stale_gather_of_lists_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        GatheredElements, "matches_codes", lambda self, codes, _: len(codes) == len(self._codes)
    )

    assert _caught(refreshing_equals_rebuilding, ("records",))
