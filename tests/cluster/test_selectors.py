"""Label selectors for many comparisons."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from policysched.cluster.disruption_budgets import DisruptionBudgets
from policysched.cluster.selector_index import SelectorIndex
from policysched.cluster.volumes.volume_cache import VolumeCache
from policysched.evaluate.columns.free_volume_index import FreeVolumeIndexCache
from policysched.evaluate.columns.volume_attributes import VolumeLabels
from policysched.model.selectors import LabelSelector, SelectorByKey, SelectorRequirement
from policysched.model.workloads import DisruptionBudget
from tests.builders import pod
from tests.volumes import claim, volume

KEYS, VALUES = st.sampled_from("abcd"), st.sampled_from("123")
WITH_VALUES = st.builds(
    SelectorRequirement,
    KEYS,
    st.sampled_from(("In", "NotIn")),
    st.lists(VALUES, min_size=1, max_size=3).map(tuple),
)
WITHOUT_VALUES = st.builds(
    SelectorRequirement, KEYS, st.sampled_from(("Exists", "DoesNotExist")), st.just(())
)
SELECTORS = st.lists(WITH_VALUES | WITHOUT_VALUES, max_size=5).map(lambda each: LabelSelector(tuple(each)))


@given(SELECTORS, st.dictionaries(KEYS, VALUES))
def test_a_selector_by_key_selects_the_same(selector: LabelSelector, labels: dict[str, str]) -> None:
    assert SelectorByKey(selector).selects(labels) == selector.selects(labels)


@given(SELECTORS, st.lists(st.dictionaries(KEYS, VALUES), max_size=5))
def test_the_labels_of_volumes_are_selected_together_as_each_of_them(
    selector: LabelSelector, labels: list[dict[str, str]]
) -> None:
    volumes = [volume(f"v{number}", labels=each) for number, each in enumerate(labels)]

    selected = VolumeLabels(volumes).selected(SelectorByKey(selector))

    assert selected.tolist() == [selector.selects(each) for each in labels]


CHANGES = st.lists(st.tuples(st.sampled_from("xyz"), SELECTORS | st.none()), min_size=1, max_size=8)


def check_index(changes: list[tuple[str, LabelSelector | None]], pods: list[dict[str, str]]) -> None:
    index, plain = SelectorIndex(), dict[str, LabelSelector]()
    for name, selector in changes:
        if selector is None:
            index.remove(name)
            plain.pop(name, None)
        else:
            index.put(name, selector)
            plain[name] = selector
        for labels in pods:
            selecting = index.selecting(labels, names_max=3, keys_max=4)
            assert sorted(selecting or ()) == sorted(each for each in plain if plain[each].selects(labels))
    for name in plain:
        index.remove(name)
    assert not index._keys and not any(index._required), "nothing is left of what is removed"


@given(CHANGES, st.lists(st.dictionaries(KEYS, VALUES), min_size=1, max_size=3))
def test_an_index_of_selectors_selects_as_each_of_them(
    changes: list[tuple[str, LabelSelector | None]], pods: list[dict[str, str]]
) -> None:
    check_index(changes, pods)


def test_a_planted_bug_in_the_index_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three required keys two are counted."""
    original = SelectorIndex._toggle

    def toggle(self: SelectorIndex, number: int, selector: SelectorByKey) -> None:
        original(self, number, selector)
        if len(selector.present) == 3:
            self._required[0] ^= 1 << number

    monkeypatch.setattr(SelectorIndex, "_toggle", toggle)
    with pytest.raises(AssertionError):
        find_counterexample()


@settings(max_examples=500, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
@given(CHANGES, st.lists(st.dictionaries(KEYS, VALUES), min_size=1, max_size=3))
def find_counterexample(changes: list[tuple[str, LabelSelector | None]], pods: list[dict[str, str]]) -> None:
    check_index(changes, pods)


class Requirements(tuple[SelectorRequirement, ...]):
    """Counts how often they are read."""

    reads = 0

    def __iter__(self) -> Iterator[SelectorRequirement]:
        type(self).reads += 1
        return super().__iter__()


def many_requirements() -> LabelSelector:
    """All of them hold for pods and volumes without these labels."""
    Requirements.reads = 0
    return LabelSelector(
        Requirements(SelectorRequirement(f"key-{number}", "DoesNotExist", ()) for number in range(1_000))
    )


def test_the_requirements_of_a_claim_are_not_read_for_each_volume() -> None:
    volumes = VolumeCache()
    for number in range(50):
        volumes.put_volume(volume(f"v{number}", phase="Available"))
    indexes = FreeVolumeIndexCache(volumes)
    data = replace(claim("data"), selector=many_requirements())

    assert indexes.volumes_for(data, 0, ()).usable.sum() == 50
    for number in range(50):
        volumes.put_volume(volume(f"v{number}", phase="Available", version=2, labels={"changed": "yes"}))
    assert indexes.volumes_for(data, 0, ()).usable.sum() == 50

    assert Requirements.reads <= 2


def test_the_requirements_of_a_budget_are_not_read_for_each_pod() -> None:
    budgets = DisruptionBudgets()
    budgets.put(DisruptionBudget("default", "big", many_requirements(), 1, frozenset()))

    for number in range(50):
        assert len(budgets.selecting(pod(f"pod-{number}", labels={"number": str(number)}))) == 1

    assert Requirements.reads <= 2
