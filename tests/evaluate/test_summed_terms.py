"""Placed pods in hundreds whose terms select every pod: decisions read sums, which are those of the groups one by one."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from policysched.cluster.cache import ClusterCache
from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compile_program
from policysched.evaluate.columns import existing_terms, pod_changes, selector_table, summed_terms, term_table
from policysched.evaluate.columns import placed_pods as placed_pods_module
from policysched.evaluate.columns.placed_pods import HypotheticalPlacedPods, PlacedPods
from policysched.evaluate.columns.pod_changes import PodChanges
from policysched.evaluate.columns.pod_classes import PodClassTable, PodMatcher
from policysched.evaluate.columns.summed_terms import SummedTerms
from policysched.evaluate.columns.term_table import TermTable
from policysched.model.identifiers import PodUid
from policysched.model.selectors import LabelSelector, SelectorRequirement
from tests.builders import placed, pod
from tests.evaluate.clusters import Scene, scenes
from tests.evaluate.evaluation import evaluated, later
from tests.evaluate.histories import play, seeds, twin
from tests.evaluate.policies import corner
from tests.evaluate.test_followed_overlays import Added, overlay_with
from tests.evaluate.test_hostile import calls_of, cluster, decision_calls
from tests.evaluate.test_pod_affinity import Harness
from tests.hostile import HOST, PREFERRED, REQUIRED, ZONE, not_in
from tests.scheduler.calls import count_calls

CALLS_PER_LABEL = 8  # its hashes, but no search in an array

SEARCH = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
HUNT = settings(
    max_examples=2000,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
    derandomize=True,
    database=None,
)


def selects_everybody(number: int) -> dict[str, Any]:
    terms = [{"weight": 1, "podAffinityTerm": {**not_in(number), "topologyKey": key}} for key in (HOST, ZONE)]
    return {"affinity": {"podAffinity": {PREFERRED: terms}}}


def hostile_cluster(count: int) -> ClusterCache:
    tenants = [pod(f"h{i}", namespace="tenant", spec=selects_everybody(i)) for i in range(count)]
    return _with(cluster(20), tenants)


def _with(cache: ClusterCache, pods: list[Any]) -> ClusterCache:
    for number, each in enumerate(pods):
        cache.put_pod(placed(each, f"n{number % 20}"))
    return cache


def later_decision_calls(count: int, change: Callable[[ClusterCache], None]) -> int:
    cache = hostile_cluster(count)
    harness = Harness(cache)
    harness.selected("first", labels={"app": "web"})
    change(cache)
    return decision_calls(harness, pod("second", cpu="1", labels={"app": "web"}))


def nothing(_: ClusterCache) -> None:
    pass


def a_changed_pod(cache: ClusterCache) -> None:
    cache.put_pod(placed(pod("h1", namespace="tenant", labels={"new": "1"}, spec=selects_everybody(1)), "n1"))


@pytest.mark.parametrize("change", [nothing, a_changed_pod])
def test_a_decision_does_not_visit_each_of_very_many_terms_that_select_its_pod(
    change: Callable[[ClusterCache], None],
) -> None:
    assert later_decision_calls(600, change) < later_decision_calls(100, change) + 100


def test_pods_with_labels_that_no_term_names_are_compared_once() -> None:
    harness = Harness(hostile_cluster(100))
    terms = harness.evaluator._snapshots.columns.placed_pods.terms
    harness.selected("first", labels={"app": "first"})
    before = terms.compared_terms

    for number in range(20):
        harness.selected(f"next-{number}", labels={"app": f"next-{number}"})

    assert terms.compared_terms == before
    harness.selected("named", labels={"app": "none-7"})
    assert terms.compared_terms > before, "a term says NotIn of this one"


def test_pods_of_ever_new_labels_are_compared_with_the_terms_that_name_one_of_these(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(existing_terms, "_MANY_GROUPS", 100, raising=False)
    placed_pods = hundred_groups_that_select_everybody()
    terms = placed_pods.terms
    placed_pods.terms_selecting("default", {"app": "none-1"})
    before = terms.compared_terms

    for number in range(2, 22):
        placed_pods.terms_selecting("default", {"app": f"none-{number}"})

    assert terms.compared_terms - before == 20 * 2 * 2, (
        "two terms name each value, and are compared without it, too"
    )


def test_no_value_of_a_term_stands_for_those_that_no_term_names() -> None:
    placed_pods = PlacedPods({}, 8, {HOST})
    requirement = {"key": "app", "operator": "In", "values": ["\0", ""]}
    term = {"labelSelector": {"matchExpressions": [requirement]}, "topologyKey": HOST}
    placed_pods.adjust(0, pod("tenant", spec={"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}), 1)

    assert placed_pods.terms_selecting("default", {"app": ""})
    assert not placed_pods.terms_selecting("default", {"app": "web"})


def calls_for_labels(count: int) -> int:
    """The terms of a placed pod name a value of each label."""
    placed_pods = PlacedPods({}, 8, {HOST})
    requirements = [{"key": f"k{i}", "operator": "NotIn", "values": ["v"]} for i in range(count)]
    term = {"labelSelector": {"matchExpressions": requirements}, "topologyKey": HOST}
    affinity = {"podAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": term}]}}
    placed_pods.adjust(0, pod("tenant", spec={"affinity": affinity}), 1)
    labels = {f"k{i}": "w" for i in range(count)}
    return calls_of(lambda: placed_pods.terms_selecting("default", labels))


def test_terms_are_compared_with_all_labels_of_a_pod_at_once() -> None:
    """A pod can have thousands: those whose values terms name were searched one by one."""
    calls_for_labels(10)  # what is done once

    assert calls_for_labels(400) - calls_for_labels(200) < 200 * CALLS_PER_LABEL


def test_a_changed_namespace_compares_no_pods_of_others_again() -> None:
    placed_pods = PlacedPods({}, 8, {HOST, ZONE})
    for number in range(100):
        placed_pods.adjust(0, pod(f"h{number}", spec=selects_everybody(number)), 1)
    placed_pods.terms_selecting("default", {})

    placed_pods.namespaces_changed()

    assert calls_of(lambda: placed_pods.terms_selecting("default", {})) < 100


def hundred_groups_that_select_everybody() -> PlacedPods:
    placed_pods = PlacedPods({}, 1024, {HOST, ZONE})
    for number in range(100):
        placed_pods.adjust(0, pod(f"h{number}", spec=selects_everybody(number)), 1)
    return placed_pods


def amounts_by_key(
    placed_pods: PlacedPods, overlay: HypotheticalPlacedPods | None = None
) -> dict[str, list[float]]:
    amounts = {key: np.zeros(1024) for key in (HOST, ZONE)}
    for group, weight in placed_pods.terms_selecting("default", {"app": "none-3"}):
        counts = group.row_counts if overlay is None else overlay.row_counts(group)
        counts.add_to(amounts[group.topology_key], weight.total, 1024)
    return {key: of_key.tolist() for key, of_key in amounts.items()}


def test_sums_that_grow_count_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(existing_terms, "_SUMS_MAX", 5_000)
    placed_pods, all_labels = (
        hundred_groups_that_select_everybody(),
        [{"app": f"none-{i}"} for i in range(20)],
    )
    for labels in all_labels:
        placed_pods.terms_selecting("default", labels)

    for row in range(1_000):
        placed_pods.adjust(row, pod(f"w{row}", spec=selects_everybody(0)), 1)
    for labels in all_labels:
        placed_pods.terms_selecting("default", labels)

    kept = [each.sums.size for each in placed_pods.terms._selecting.values() if each.sums is not None]
    assert 0 < sum(kept) <= 5_000 + max(kept)


def test_an_overlay_keeps_sums_for_a_few_pods_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_pods_module, "_OVERLAY_SUMS_MAX", 10)
    placed_pods = hundred_groups_that_select_everybody()
    overlay = HypotheticalPlacedPods(lambda: placed_pods)
    overlay.adjust(1, pod("added", spec=selects_everybody(0)), 1)
    before = amounts_by_key(placed_pods, overlay)

    for number in range(20):
        for group, _ in placed_pods.terms_selecting("default", {"app": f"none-{number}"}):
            overlay.row_counts(group)

    assert 0 < len(overlay._sums) <= 10
    assert amounts_by_key(placed_pods, overlay) == before != amounts_by_key(placed_pods)


def test_where_changes_are_summed_up_sums_follow_and_compare_only_terms_of_pods_that_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_changes, "_SPARE", 40)
    placed_pods = hundred_groups_that_select_everybody()
    amounts_by_key(placed_pods)
    fresh = hundred_groups_that_select_everybody()
    compared = placed_pods.terms.compared_terms

    for row in range(200):
        for each in (placed_pods, fresh):
            each.adjust(row, pod(f"w{row}", spec=selects_everybody(row % 100)), 1)
        placed_pods.adjust(row, pod(f"w{row}", spec=selects_everybody(7)), 1)
        placed_pods.adjust(row, pod(f"w{row}", spec=selects_everybody(7)), -1)
        placed_pods.evict_unused()
        assert amounts_by_key(placed_pods) == amounts_by_key(fresh)

    assert len(placed_pods.terms._changes.all()[0]) < 1_000, "changes were summed up"
    assert placed_pods.terms.compared_terms <= compared + 200 * 4, "two pods of two terms each changed"


def test_a_sum_that_an_overlay_begins_is_read_by_the_next_decision() -> None:
    """Terms of a further use are registered while an earlier sum is read."""
    placed_pods = hundred_groups_that_select_everybody()
    (summed, _), *_ = placed_pods.terms_selecting("default", {"app": "none-3"})
    overlay = HypotheticalPlacedPods(lambda: placed_pods)
    rejecting = {"affinity": {"podAntiAffinity": {REQUIRED: [{**not_in(1), "topologyKey": HOST}]}}}
    overlay.adjust(1, pod("added", spec=rejecting), 1)

    overlay.row_counts(summed)

    groups = placed_pods.terms_selecting("default", {"app": "none-3"})
    assert [group.use for group, _ in groups].count("rejects") == 1


# ── sums equal what they sum ───────────────────────────────────────────────────────────────────────────────────────


def sums_equal_groups(scene: Scene, seed: int) -> None:
    """In a history of changes, also on an overlay: sums that are kept, beside groups that are counted anew."""
    plan, cache = compile_program(corner("pods among pods")), scene.cache
    evaluator, first, others = Evaluator(cache), scene.pods[0], scene.pods[1:]
    for number, _ in enumerate(play(cache, seed, changes=8)):
        now, names = later(scene, number * 7), sorted(cache.nodes)
        removed: list[PodUid] = [
            uid
            for uid in sorted(cache.pods)
            if cache.ledger.placement(uid) is not None and seed >> number & 1
        ][:2]
        added: Added = [(each, names[seed % len(names)]) for each in others] if names else []
        fresh = Evaluator(twin(cache))
        evaluator.version  # noqa: B018 - refreshes the columns
        fresh.version  # noqa: B018
        overlays = [overlay_with(each, removed, added) for each in (evaluator, fresh)]
        summed, counted = [], []
        for kept, alone, few in ((summed, evaluator, 0), (counted, fresh, 10**9)):
            with pytest.MonkeyPatch.context() as limit:
                limit.setattr(existing_terms, "_FEW_GROUPS", few)
                limit.setattr(existing_terms, "_MANY_GROUPS", few)
                limit.setattr(placed_pods_module, "_OVERLAY_SUMS_MAX", 1 + seed % 3)
                overlay = overlays[few > 0]
                kept += [
                    evaluated(alone, plan, first, now, None),
                    evaluated(alone, plan, first, now, overlay),
                ]
        assert summed == counted


def sums_equal_groups_with_small_limits(scene: Scene, seed: int) -> None:
    """Changes are summed up and groups are dropped again and again."""
    with pytest.MonkeyPatch.context() as limit:
        limit.setattr(pod_changes, "_SPARE", seed % 5)
        limit.setattr(selector_table, "_UNSORTED_MAX", seed % 3)
        limit.setattr(summed_terms, "_FEW_CELLS", 10**9 if seed % 2 else seed % 11)
        limit.setattr(placed_pods_module, "_EMPTY_SIZE_MAX", seed % 7)
        limit.setattr(term_table, "_KINDS_MIN", -(10**9) if seed % 2 else 256)
        sums_equal_groups(scene, seed)


@SEARCH
@given(scene=scenes(pods=3, placed_max=8), seed=seeds)
def test_sums_equal_the_groups_that_they_sum(scene: Scene, seed: int) -> None:
    sums_equal_groups_with_small_limits(scene, seed)


@pytest.mark.search
@pytest.mark.parametrize(
    "bug",
    [
        (SummedTerms, "is_current", True),
        (SummedTerms, "for_labels", lambda sums, *_: (sums, 0)),
        (
            PodChanges,
            "since",
            lambda log, position: log._from(max(0, len(log._numbers) - log.end + position)),
        ),
        (existing_terms.ExistingTerms, "counts_changed", lambda *_: None),
        (SummedTerms, "amounts", lambda *_: ((), ())),
        (TermTable, "keep", lambda *arguments, keep=TermTable.keep: keep(*arguments) is None),
    ],
    ids=lambda bug: bug[1],
)
def test_a_planted_mistake_in_sums_is_caught(
    bug: tuple[type, str, Callable[..., object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*bug)

    def is_wrong(scene_and_seed: tuple[Scene, int]) -> bool:
        try:
            sums_equal_groups_with_small_limits(*scene_and_seed)
        except AssertionError:
            return True
        return False

    find(st.tuples(scenes(pods=3, placed_max=8), seeds), is_wrong, settings=HUNT)


def test_label_keys_that_no_node_has_any_more_are_forgotten_as_topology_keys() -> None:
    """A node can get ever other label keys, and a tenant pods with terms of each."""
    placed_pods = PlacedPods({}, 8, {f"key-{number}" for number in range(2_000)})
    for number in range(2_000):
        term = {**not_in(number), "topologyKey": f"key-{number}"}
        each = pod(f"p{number}", spec={"affinity": {"podAntiAffinity": {REQUIRED: [term]}}})
        placed_pods.adjust(0, each, 1)
        placed_pods.adjust(0, each, -1)
        placed_pods.evict_unused()

    assert len(placed_pods.terms._table.kinds) < 1_000


def test_what_pods_leave_is_dropped_in_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 25,000 pods with 300,000 terms half were dropped in one piece of 0.13 s."""
    monkeypatch.setattr(existing_terms, "_GROUPS_AT_ONCE", 100, raising=False)
    monkeypatch.setattr(placed_pods_module, "_CLASSES_AT_ONCE", 100, raising=False)
    placed_pods = PlacedPods({}, 8, {HOST, ZONE})
    pods = [
        pod(f"p{number}", labels={"n": f"{number}"}, spec=selects_everybody(number)) for number in range(800)
    ]
    for each in pods:
        placed_pods.adjust(0, each, 1)
    for each in pods[1:]:
        placed_pods.adjust(0, each, -1)

    sizes = [sizes_of(placed_pods)]
    while sizes[-1] != (2, 2, 4, 4) and len(sizes) < 50:
        placed_pods.evict_unused()
        placed_pods.adjust(1, pods[0], 1)
        if len(sizes) == 3:  # its class was dropped, and its terms were not
            placed_pods.adjust(0, pod("new", labels={"n": "new"}, spec=selects_everybody(7)), 1)
        sizes.append(sizes_of(placed_pods))

    for before, after in pairwise(sizes):
        dropped = [now < then for then, now in zip(before, after, strict=True)]
        assert sum(dropped) <= 1, f"{before} became {after}"
        assert before[0] - after[0] <= 100
        assert before[3] - after[3] <= 100
    assert sizes[0] == (800, 800, 1600, 1600)
    assert sizes[-1] == (2, 2, 4, 4)
    assert sum(weight.total for _, weight in placed_pods.terms_selecting("default", {})) > 0


def test_classes_are_moved_to_another_table_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of 800 are dropped. Between the pieces pods come and go, also like those whose class is or was dropped."""
    monkeypatch.setattr(placed_pods_module, "_CLASSES_AT_ONCE", 100)
    keys, live, moved = {HOST}, set[int](), list[int]()
    placed_pods = PlacedPods({}, 8, keys)
    pods = [
        pod(f"p{number}", labels={"n": f"{number}"}, spec=selects_everybody(number % 7))
        for number in range(1_000)
    ]

    def adjust(number: int, delta: int) -> None:
        placed_pods.adjust(number % 8, pods[number], delta)
        live.symmetric_difference_update((number,))

    for number in range(800):
        adjust(number, 1)
    for number in range(600):
        adjust(number, -1)
    for step in range(30):
        moved.append(count_calls(monkeypatch, PodClassTable, "append", placed_pods.evict_unused))
        for number, delta in ((800 + step, 1), (20 * step, 1), (700 + step, -1)):
            adjust(number, delta)
        if step == 8:
            keys.add(ZONE)
            placed_pods.topology_keys_appeared({ZONE})

        expected = PlacedPods({}, 8, keys)
        for number in live:
            expected.adjust(number % 8, pods[number], 1)
        assert read_of(placed_pods) == read_of(expected), f"after {step} pieces"

    assert placed_pods._dropping is None and sum(moved) > 200
    assert max(moved) <= 100 + 30, "and those that came meanwhile"
    assert len(placed_pods._table.classes) < 400


def read_of(placed_pods: PlacedPods) -> tuple[list[float], list[float], dict[str, list[float]]]:
    """How many pods each row has, and how many with a label; by topology key, the weights of terms that select a pod."""
    everybody, some = LabelSelector(()), LabelSelector((SelectorRequirement("n", "In", ("20", "810")),))
    counts = [
        placed_pods.tally(PodMatcher(((None, selector),))).row_counts.array(8).tolist()
        for selector in (everybody, some)
    ]
    weights = {key: np.zeros(8) for key in (HOST, ZONE)}
    for group, weight in placed_pods.terms_selecting("default", {}):
        weights[group.topology_key] += weight.total * group.row_counts.array(8)
    return counts[0], counts[1], {key: array.tolist() for key, array in weights.items()}


def sizes_of(placed_pods: PlacedPods) -> tuple[int, int, int, int]:
    """Classes of pods, by key and in the table, and groups of terms, in the table and by their terms."""
    terms = placed_pods.terms
    classes = len(placed_pods._pod_classes), len(placed_pods._table.classes)
    return *classes, len(terms._table.groups), len(terms._groups)
