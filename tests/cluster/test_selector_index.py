"""The limits of an index of label selectors."""

import pytest

from policysched.cluster import selector_index
from policysched.cluster.selector_index import SelectorIndex
from policysched.model.selectors import LabelSelector, SelectorRequirement


def selector(*keys: str) -> LabelSelector:
    return LabelSelector(tuple([SelectorRequirement(key, "In", ("a",)) for key in keys]))


def test_selectors_of_thousands_of_keys_take_no_memory_for_each() -> None:
    """A tenant writes a thousand keys in 15 KB, and an index took 100 times as much for them."""
    index = SelectorIndex()
    for number in range(40):
        index.put(f"s{number}", selector(*[f"key-{number}-{key}" for key in range(1_000)]))

    assert len(index._keys) <= selector_index.PARTS_MAX
    assert index.selecting({"app": "web"}, 16, 32) is None


def test_selectors_that_were_left_out_are_indexed_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selector_index, "PARTS_MAX", 3)
    index = SelectorIndex()
    index.put("large", selector("a", "b", "c"))
    for key in "def":
        index.put(key, selector(key))
    full = index.selecting({"d": "a"}, 16, 32)
    index.remove("large")

    assert full is None
    assert len(index) == 3 and [index.selecting({key: "a"}, 16, 32) for key in "def"] == [["d"], ["e"], ["f"]]


def test_a_selector_that_was_left_out_can_be_removed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selector_index, "PARTS_MAX", 2)
    index = SelectorIndex()
    index.put("few", selector("a"))
    index.put("many", selector("a", "b"))
    left_out = index.selecting({"a": "a"}, 16, 32)
    index.put("many", selector("b"))
    replaced = index.selecting({"b": "a"}, 16, 32)
    index.put("many", selector("a", "b"))
    index.remove("many")

    assert left_out is None and replaced == ["many"]
    assert index.selecting({"a": "a"}, 16, 32) == ["few"] and len(index) == 1
