"""Label selectors for many comparisons."""

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from policysched.cluster.disruption_budgets import DisruptionBudgets
from policysched.cluster.volumes.volume_cache import VolumeCache
from policysched.evaluate.columns.free_volume_index import FreeVolumeIndexCache
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

    assert len(indexes.index_for(data, 0).volumes) == 50
    for number in range(50):
        volumes.put_volume(volume(f"v{number}", phase="Available", version=2, labels={"changed": "yes"}))
    assert len(indexes.index_for(data, 0).volumes) == 50

    assert Requirements.reads <= 2


def test_the_requirements_of_a_budget_are_not_read_for_each_pod() -> None:
    budgets = DisruptionBudgets()
    budgets.put(DisruptionBudget("default", "big", many_requirements(), 1, frozenset()))

    for number in range(50):
        assert len(budgets.selecting(pod(f"pod-{number}", labels={"number": str(number)}))) == 1

    assert Requirements.reads <= 2
