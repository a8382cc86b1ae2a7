"""Terms as columns select the pods that their selectors select one by one, also after groups were dropped."""

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from policysched.evaluate.columns import selector_table
from policysched.evaluate.columns.selector_table import LabelIndex, SelectorTable
from policysched.evaluate.columns.term_table import PodsToSelect, TermTable
from policysched.model import selector_columns
from policysched.model.affinity import PodSelector, TermSet, Weight
from policysched.model.selectors import LabelSelector, SelectorRequirement
from tests.evaluate.test_hostile import calls_of


@pytest.fixture(autouse=True)
def sorted_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some label hashes are sorted, in several runs, and some are not."""
    monkeypatch.setattr(selector_table, "_UNSORTED_MAX", 2)
    monkeypatch.setattr(selector_table, "_RUN_MAX", 5, raising=False)


KEYS, VALUES, NAMESPACES = ["a", "b"], ["0", "1", "2"], ["default", "team", "unknown"]
HUNT = settings(max_examples=2000, deadline=None, phases=[Phase.generate], derandomize=True, database=None)

labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
requirements = st.builds(
    lambda key, operator, values: SelectorRequirement(
        key, operator, tuple(values) if operator in ("In", "NotIn") else ()
    ),
    st.sampled_from(KEYS),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    st.lists(st.sampled_from(VALUES), min_size=1, max_size=3),
)
selectors = st.builds(LabelSelector, st.lists(requirements, max_size=3).map(tuple))
pod_selectors = st.builds(
    PodSelector,
    st.lists(st.sampled_from(NAMESPACES), max_size=2).map(tuple),
    st.none() | selectors,
    st.none() | selectors,
)
weights = st.builds(
    lambda total, more: Weight(total, abs(total) + 2 * more), st.integers(-9, 9), st.integers(0, 3)
)
term_sets = st.builds(
    TermSet,
    st.sampled_from(["rejects", "requires", "prefers"]),
    st.sampled_from(["zone", "host"]),
    st.dictionaries(pod_selectors, weights, max_size=4),
)
pods = st.builds(PodsToSelect, st.sampled_from(NAMESPACES), labels, labels).map(
    lambda each: PodsToSelect(each.namespace, None, each.labels) if each.namespace == "unknown" else each
)
tables = st.tuples(st.lists(st.tuples(term_sets, st.booleans(), st.booleans()), max_size=6), pods)
"""Of each group: its terms, whether they were prepared, and whether it is kept."""


def selects(selector: PodSelector, about: PodsToSelect) -> bool:
    if selector.label_selector is None or not selector.label_selector.selects(about.labels):
        return False
    if about.namespace in selector.namespaces:
        return True
    among = selector.namespace_selector
    if among is None or not among.requirements:
        return among is not None
    return about.namespace_labels is not None and among.selects(about.namespace_labels)


def weight_of(terms: TermSet, about: PodsToSelect) -> Weight | None:
    found = [weight for selector, weight in terms.weights if selects(selector, about)]
    if not found:
        return None
    if terms.use == "rejects":
        return Weight(1, 1)
    return Weight(sum(weight.total for weight in found), sum(weight.magnitude for weight in found))


def read(table: TermTable, about: PodsToSelect, first: int) -> list[Weight | None]:
    found, _ = table.weights(about, first)
    by_number = zip(found.numbers.tolist(), found.totals.tolist(), found.magnitudes.tolist(), strict=True)
    weights: dict[int, Weight] = {number: Weight(*weight) for number, *weight in by_number}
    return [weights.get(group.number) for group in table.groups[first:]]


def read_some(table: TermTable, about: PodsToSelect, numbers: list[int]) -> list[Weight | None]:
    found, compared = table.weights_of(about, np.array(numbers, np.int32))
    assert compared == sum(
        selector.label_selector is not None
        for number in numbers
        for selector, _ in table.groups[number].terms.weights
    )
    by_number = zip(found.numbers.tolist(), found.totals.tolist(), found.magnitudes.tolist(), strict=True)
    weights: dict[int, Weight] = {number: Weight(*weight) for number, *weight in by_number}
    return [weights.get(number) for number in numbers]


def naming(table: TermTable, about: PodsToSelect) -> list[int]:
    """The groups with a term that names a value of the labels."""
    return [
        group.number
        for group in table.groups
        if any(
            about.labels.get(requirement.key) in requirement.values
            for selector, _ in group.terms.weights
            if selector.label_selector is not None
            for requirement in selector.label_selector.requirements
        )
    ]


def columns_equal_terms(
    table_and_pods: tuple[list[tuple[TermSet, bool, bool]], PodsToSelect],
) -> None:
    groups, about = table_and_pods
    table = TermTable()
    for terms, is_prepared, _ in groups:
        if is_prepared:
            terms.prepare()
        table.add(terms)
    expected = [weight_of(terms, about) for terms, _, _ in groups]
    for first in range(len(groups) + 1):
        assert read(table, about, first) == expected[first:]
        assert read_some(table, about, list(range(first % 2, len(groups), 2))) == expected[first % 2 :: 2]
    assert table.naming(tuple(about.labels.items())).tolist() == naming(table, about)
    kept = [is_kept for _, _, is_kept in groups]
    table.keep(np.array(kept, np.bool_))
    table.add(
        TermSet("prefers", "host", {PodSelector((), LabelSelector(()), LabelSelector(())): Weight(1, 1)})
    )
    expected = [weight for weight, is_kept in zip(expected, kept, strict=True) if is_kept]
    assert read(table, about, 0) == [*expected, Weight(1, 1)]
    assert read_some(table, about, list(range(len(table.groups)))) == [*expected, Weight(1, 1)]
    assert table.naming(tuple(about.labels.items())).tolist() == naming(table, about)


@settings(max_examples=300, deadline=None)
@given(tables)
def test_columns_select_as_their_terms_one_by_one(
    table_and_pods: tuple[list[tuple[TermSet, bool, bool]], PodsToSelect],
) -> None:
    columns_equal_terms(table_and_pods)


def comparison_calls(count: int) -> int:
    table = TermTable()
    for number in range(count):
        about = LabelSelector((SelectorRequirement("a", "NotIn", (f"none-{number}",)),))
        table.add(TermSet("prefers", "host", {PodSelector((), LabelSelector(()), about): Weight(1, 1)}))
    return calls_of(lambda: table.weights(PodsToSelect("default", {}, {"a": "none-7"}), 0))


def test_a_comparison_takes_no_step_for_each_term(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selector_table, "_RUN_MAX", 65_536, raising=False)
    assert comparison_calls(1000) == comparison_calls(10)


def test_hashes_are_sorted_few_at_a_time_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three millions, all were sorted in one piece when an eighth was added: 0.7 s."""
    monkeypatch.setattr(selector_table, "_UNSORTED_MAX", 16)
    monkeypatch.setattr(selector_table, "_RUN_MAX", 64, raising=False)
    lengths, argsort = [0], np.argsort

    def noting(values: Any, **more: Any) -> Any:
        lengths.append(len(values))
        return argsort(values, **more)

    monkeypatch.setattr(np, "argsort", noting)
    index, hashes = LabelIndex(), array("q")
    for number in range(0, 2_000, 10):
        hashes.extend(range(number, number + 10))
        index.extended(hashes)
    for keeps in range(20):
        kept = np.arange(len(hashes)) % 2 == keeps % 2
        index.keep(kept)
        hashes = array("q", np.frombuffer(hashes, np.int64)[kept].tobytes())
        while len(hashes) < 2_000:
            hashes.extend(range(10_000 * keeps, 10_000 * keeps + 10))
            index.extended(hashes)

    assert max(lengths) <= 64
    assert len(index._runs) <= 2 * 2_000 / 64 + 1, "short runs that are left are merged"


def presence_alone(key: str, _: str | None) -> int:
    return hash(key)


def keep_nothing(_: object, kept: object) -> None:
    pass


right_find = LabelIndex.find


@pytest.mark.search
@pytest.mark.parametrize(
    "bug",
    [
        (selector_columns, "_MET", 1),
        (selector_columns, "_UNMET", -1),
        (selector_columns, "label_hash", presence_alone),
        (SelectorTable, "keep", keep_nothing),
        (LabelIndex, "keep", keep_nothing),
        (
            LabelIndex,
            "find",
            lambda index, hashes, wanted, start=0: right_find(index, hashes, wanted, start)[1:],
        ),
    ],
    ids=lambda bug: bug[1],
)
def test_a_planted_mistake_in_columns_is_caught(
    bug: tuple[object, str, Callable[..., object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*bug)

    def is_wrong(table_and_pods: tuple[list[tuple[TermSet, bool, bool]], PodsToSelect]) -> bool:
        try:
            columns_equal_terms(table_and_pods)
        except (AssertionError, ValueError, IndexError):
            return True
        return False

    find(tables, is_wrong, settings=HUNT)
