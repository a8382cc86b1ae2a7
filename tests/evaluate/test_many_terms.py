"""Pods with many terms, which are matched with all classes of placed pods at once instead of counted in tallies."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policysched.evaluate import evaluation
from policysched.evaluate.columns.label_columns import LabelColumns
from policysched.evaluate.columns.placed_pods import HypotheticalPlacedPods, PlacedPods
from policysched.evaluate.columns.pod_classes import PodClass, PodClassTable, PodMatcher
from policysched.evaluate.columns.view import View
from policysched.evaluate.plan.plan import Plan, compile_program
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import BuiltinFilter, BuiltinScore
from policysched.model.selectors import LabelSelector, SelectorRequirement
from tests.builders import node, placed, pod, world
from tests.conformance.kube_default import kube_default
from tests.evaluate.clusters import ClusterRandom, Scene, scenes
from tests.evaluate.histories import seeds
from tests.evaluate.test_builtins_property import agree, only
from tests.evaluate.test_pod_affinity import WEB, Harness, apart, three_zones
from tests.evaluate.test_refresh import HUNT, an_overlay_equals_placing, refreshing_equals_rebuilding

Search = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
SPAN = kube_default().queue[0].value.span
FILTER = BuiltinFilter("inter_pod_affinity", "inter_pod_affinity", (), None, False, SPAN)
SCORE = BuiltinScore(
    "inter_pod_affinity",
    "inter_pod_affinity",
    1,
    (("hard_pod_affinity_weight", 1), ("ignore_preferred_terms_of_existing_pods", "no")),
    None,
    False,
    SPAN,
)
AFFINITY = only((FILTER,), (SCORE,))
PLAN = compile_program(AFFINITY)


@contextmanager
def many_from_the_first() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("policysched.builtins.inter_pod_affinity.kernel._TALLIES_PER_POD_MAX", -1)
        patch.setattr(evaluation, "_REBUILD_FRACTION", 0)
        yield


# ── as the reference implementation says ───────────────────────────────────────────────────────────────────────────


@Search
@given(scene=scenes())
def test_many_terms_are_evaluated_as_the_reference_does(scene: Scene) -> None:
    with many_from_the_first():
        agree(AFFINITY, scene)


@settings(Search, max_examples=25)  # each is a history of changes
@given(scene=scenes(placed_max=4), seed=seeds)
def test_many_terms_follow_changes_and_overlays(scene: Scene, seed: int) -> None:
    with many_from_the_first():
        refreshing_equals_rebuilding(AFFINITY, PLAN, scene, seed)
        an_overlay_equals_placing(AFFINITY, PLAN, scene, seed)


def _caught(of: Callable[[Program, Plan, Scene, int], None]) -> bool:
    @HUNT
    @given(scene=scenes(pods=5), seed=seeds)
    def hunt(scene: Scene, seed: int) -> None:
        of(AFFINITY, PLAN, scene, seed)

    try:
        with many_from_the_first():
            hunt()
    except AssertionError:
        return True
    return False


def test_a_planted_overlay_without_its_pods_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HypotheticalPlacedPods, "add_weights", lambda *_: None)

    assert _caught(an_overlay_equals_placing)


def test_a_planted_stale_count_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(View, "pods_version", lambda _: 0)

    assert _caught(refreshing_equals_rebuilding)


# ── classes ────────────────────────────────────────────────────────────────────────────────────────────────────────

_KEYS, _VALUES, _NAMESPACES = ("app", "tier", "team"), ("a", "b", "c"), ("default", "kube-system", "tenant")


def matching_equals_comparing(seed: int) -> None:
    rng, table = ClusterRandom(f"classes {seed}"), PodClassTable()
    for _ in range(rng.randint(0, 12)):
        labels = {key: rng.choice(_VALUES) for key in rng.some(_KEYS, 3)}
        pod_class = PodClass(pod(namespace=rng.choice(_NAMESPACES), labels=labels))
        pod_class.terminating = rng.one_in(4)
        pod_class.has_unknown_labels = rng.one_in(4)
        table.add(pod_class)
    for _ in range(4):
        matcher = PodMatcher(
            tuple((_scope(rng), _selector(rng)) for _ in range(rng.randint(0, 2))),
            exclude_terminating=rng.one_in(2),
            if_unknown=rng.one_in(2),
        )
        assert table.mask(matcher).tolist() == [matcher.matches(each) for each in table.classes]


def _scope(rng: ClusterRandom) -> frozenset[str] | None:
    return None if rng.one_in(3) else frozenset(rng.some((*_NAMESPACES, "unknown"), 3))


def _selector(rng: ClusterRandom) -> LabelSelector:
    requirements = []
    for key in rng.some((*_KEYS, "unknown"), 3):
        operator = rng.choice(("In", "NotIn", "Exists", "DoesNotExist"))
        values = rng.some((*_VALUES, "unknown"), 3) if operator in ("In", "NotIn") else ()
        requirements.append(SelectorRequirement(key, operator, tuple(values)))  # type: ignore[arg-type]
    return LabelSelector(tuple(requirements))


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_selector_over_all_classes_selects_what_it_selects_one_by_one(seed: int) -> None:
    matching_equals_comparing(seed)


def test_a_planted_requirement_on_an_absent_label_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    restrict = LabelColumns.restrict

    def wrong(self: LabelColumns, mask: object, requirement: SelectorRequirement) -> None:
        if requirement.operator != "DoesNotExist":
            restrict(self, mask, requirement)  # type: ignore[arg-type]

    monkeypatch.setattr(LabelColumns, "restrict", wrong)

    with pytest.raises(AssertionError):
        for seed in range(200):
            matching_equals_comparing(seed)


# ── topology keys ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_terms_count_once_a_node_has_their_topology_key() -> None:
    guard = placed(pod("guard", spec=apart("rack")), "n0")
    cache = world(three_zones(), [guard])
    harness = Harness(cache)
    before = {harness.selected(f"a{index}", labels=WEB) for index in range(24)}

    for name in ("n0", "n1"):
        cache.put_node(node(name, labels={"rack": "r1"}))
    afterwards = {harness.selected(f"b{index}", labels=WEB) for index in range(24)}
    for name in ("n0", "n1"):
        cache.put_node(node(name))
    again = {harness.selected(f"c{index}", labels=WEB) for index in range(24)}

    assert {"n1"} <= before
    assert afterwards.isdisjoint({"n0", "n1"})
    assert {"n1"} <= again


def test_missing_the_first_node_with_a_topology_key_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlacedPods, "topology_keys_appeared", lambda *_: None)

    with pytest.raises(AssertionError):
        test_terms_count_once_a_node_has_their_topology_key()


def test_the_pods_own_terms_count_once_a_node_has_their_topology_key() -> None:
    cache = world([node("n0"), node("n1")], [placed(pod("web", labels=WEB), "n0")])
    harness = Harness(cache)
    before = harness.verdict("first", spec=apart("rack"))

    cache.put_node(node("n0", labels={"rack": "r1"}))
    afterwards = harness.verdict("second", spec=apart("rack"))

    assert (before.feasible_count, afterwards.feasible_count) == (2, 1)
