"""Labels and values of pods that are gone, in thousands and no two equal: what is remembered counts by its size."""

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from policysched.cluster import selector_owners
from policysched.cluster.disruption_budgets import DisruptionBudgets
from policysched.cluster.selector_owners import SelectorOwners
from policysched.evaluate.columns import existing_terms, placed_pods, pod_changes
from policysched.evaluate.columns import tallies as tallies_module
from policysched.evaluate.columns.placed_pods import PlacedPods
from policysched.model.affinity import PodSelector
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod
from policysched.model.selectors import LabelSelector, SelectorRequirement
from policysched.model.workloads import DisruptionBudget
from tests.builders import pod, service
from tests.hostile import HOST, anti_affinity

LABELS, VALUES, PODS = 400, 4_000, 60
KEPT_BYTES_MAX = 3 * 2**20
Read = Callable[[int], object]


def labels(number: int) -> dict[str, str]:
    return {f"k{index}": f"{number}" for index in range(LABELS)}


def terms_that_select_a_pod() -> Read:
    placed = PlacedPods({}, 8, {HOST})
    requirements = [{"key": f"k{index}", "operator": "Exists"} for index in range(LABELS)]
    term = {"topologyKey": HOST, "labelSelector": {"matchExpressions": requirements}}
    placed.adjust(0, pod("selects", spec=anti_affinity([term])), 1)
    return lambda number: placed.terms_selecting("default", labels(number))


def selects_one_of_many(number: int) -> Pod:
    """A pod whose many terms select pods with one label of their own each."""
    terms = [
        {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": f"{number}-{index}"}}}
        for index in range(LABELS)
    ]
    return pod("gone", spec=anti_affinity(terms))


def changes_of_terms_that_are_gone() -> Read:
    placed = PlacedPods({}, 8, {HOST})

    def come_and_go(number: int) -> None:
        gone = selects_one_of_many(number)
        placed.adjust(0, gone, 1)
        placed.adjust(0, gone, -1)
        placed.evict_unused()

    return come_and_go


def pods_that_terms_selected_that_are_gone() -> Read:
    placed = PlacedPods({}, 8, {HOST})

    def come_and_go(number: int) -> None:
        gone = selects_one_of_many(number)
        placed.adjust(0, gone, 1)
        placed.terms_selecting("default", {"app": f"{number}-7"})
        placed.adjust(0, gone, -1)
        placed.evict_unused()

    return come_and_go


def classes_without_pods() -> Read:
    placed = PlacedPods({}, 8, {HOST})

    def come_and_go(number: int) -> None:
        gone = pod("gone", labels={f"{number}-{key}": value for key, value in labels(number).items()})
        placed.adjust(0, gone, 1)
        placed.adjust(0, gone, -1)
        placed.evict_unused()

    return come_and_go


def many_values(number: int) -> LabelSelector:
    values = tuple(f"{number}-{index}" for index in range(VALUES))
    return LabelSelector((SelectorRequirement("app", "In", values),))


def tallies() -> Read:
    placed = PlacedPods({}, 8, {HOST})

    def tally(number: int) -> None:
        matcher = placed.matcher([PodSelector(("tenant",), None, many_values(number))])
        assert matcher is not None
        placed.tally(matcher)
        placed.evict_unused()

    return tally


def scopes() -> Read:
    placed = PlacedPods({"tenant": Namespace("tenant", {}, {})}, 8, {HOST})
    return lambda number: placed.resolve_scope(PodSelector((), many_values(number), LabelSelector(())))


def short_labels_and_budgets() -> Read:
    budgets = DisruptionBudgets()
    budgets.put(DisruptionBudget("default", "web", None, 1, frozenset()))
    return lambda number: budgets.selecting(pod("gone", labels=labels(number)))


def short_labels_and_services() -> Read:
    owners = SelectorOwners()
    owners.put(service("web", app="web"))
    return lambda number: owners.default_selector(pod("gone", labels=labels(number)))


@pytest.mark.parametrize(
    "reader",
    [
        terms_that_select_a_pod,
        changes_of_terms_that_are_gone,
        pods_that_terms_selected_that_are_gone,
        classes_without_pods,
        tallies,
        scopes,
        short_labels_and_budgets,
        short_labels_and_services,
    ],
)
def test_what_is_remembered_counts_by_its_size(
    reader: Callable[[], Read], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With limits for a tenth of the pods, if each of them were small."""
    monkeypatch.setattr(existing_terms, "_CACHE_ITEMS_MAX", 4_000)
    monkeypatch.setattr(pod_changes, "_SPARE", 1_000)
    monkeypatch.setattr(tallies_module, "_TALLIED_SELECTORS_MAX", 2_000)
    monkeypatch.setattr(placed_pods, "_CACHE_ENTRIES_MAX", 2_000)
    monkeypatch.setattr(selector_owners, "_CHARACTERS_CACHED_MAX", 320_000)
    read = reader()
    read(0)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(1, PODS + 1):
            read(number)
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert kept < KEPT_BYTES_MAX, f"{kept} bytes of {PODS} pods that are gone"
