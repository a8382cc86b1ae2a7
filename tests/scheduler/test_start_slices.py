"""At a start nodes are read and placed pods counted in slices, between which events are applied; so are thousands of new nodes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from policysched.evaluate.columns.columns import NODES_PER_STEP, Columns
from policysched.evaluate.columns.placed_pod_counts import ITEMS_PER_STEP, PlacedPodCounts
from policysched.evaluate.columns.placed_pods import PlacedPods
from tests.builders import node, placed, pod
from tests.hostile import HOST, PREFERRED, not_in
from tests.scheduler.rig import Rig

DEFAULT = "policy test version 1\ninclude kube_default\npreemption never\n"
TERMS, PODS, NODES = 4, 200, 2 * NODES_PER_STEP


class Calls:
    """How often a method was called in each call of `decide`, and in all that came before."""

    def __init__(self) -> None:
        self.now = 0
        self.of_decisions: list[int] = []

    def settle(self, rig: Rig) -> None:
        while rig.scheduler.ready(rig.now_ns):
            self.now = 0
            rig.commands += rig.scheduler.decide(rig.now_ns)
            self.of_decisions.append(self.now)


@contextmanager
def counted(owner: type, method: str) -> Iterator[Calls]:
    calls, right = Calls(), getattr(owner, method)

    def counting(*of: Any) -> object:
        calls.now += 1
        return right(*of)

    with patch.object(owner, method, counting):
        yield calls


def nodes(count: int, prefix: str = "n") -> list[Any]:
    return [node(f"{prefix}{number}", labels={HOST: f"{prefix}{number}"}) for number in range(count)]


def with_terms(number: int) -> dict[str, Any]:
    terms = [
        {"weight": 1, "podAffinityTerm": {**not_in(TERMS * number + each), "topologyKey": HOST}}
        for each in range(TERMS)
    ]
    return {"affinity": {"podAffinity": {PREFERRED: terms}}}


def started(first: str) -> tuple[Rig, Calls]:
    """`first`: whether the policy is known before the objects, as it may be."""
    hostile = [
        placed(pod(f"old{number}", namespace="tenant", spec=with_terms(number)), f"n{number % 3}")
        for number in range(PODS)
    ]
    with counted(PlacedPods, "adjust") as calls:
        rig = Rig(DEFAULT if first == "policy" else None, *nodes(3), *hostile)
        if first != "policy":
            rig.apply_policies(DEFAULT)
        assert calls.now == 0, "no event waits until all pods are counted"
        rig.observe(pod("new"))
        calls.settle(rig)
    return rig, calls


FIRST = pytest.mark.parametrize("first", ["policy", "objects"])


@FIRST
def test_before_the_first_decision_placed_pods_are_counted_in_slices(first: str) -> None:
    rig, calls = started(first)

    assert sum(calls.of_decisions) >= PODS
    assert max(calls.of_decisions) <= ITEMS_PER_STEP // (1 + TERMS) + 2
    assert "new" in rig.placements()


def test_placed_pods_are_counted_before_the_first_pod_comes() -> None:
    hostile = [placed(pod(f"old{number}", spec=with_terms(number)), "n1") for number in range(PODS)]
    rig = Rig(DEFAULT, *nodes(3), *hostile)
    rig.settle()

    with counted(PlacedPods, "adjust") as calls:
        rig.observe(pod("new"))
        calls.settle(rig)

    assert calls.of_decisions == [0]


@FIRST
def test_at_a_start_few_nodes_are_read_in_a_call(first: str) -> None:
    with counted(Columns, "_write_row") as calls:
        rig = Rig(DEFAULT if first == "policy" else None, *nodes(NODES))
        if first != "policy":
            rig.apply_policies(DEFAULT)
        assert calls.now == 0, "no event waits until all nodes are read"
        rig.observe(pod("new"))
        calls.settle(rig)

    assert sum(calls.of_decisions) == NODES
    assert max(calls.of_decisions) <= NODES_PER_STEP
    assert "new" in rig.placements()


def test_thousands_of_new_nodes_are_read_in_slices() -> None:
    rig = Rig(DEFAULT, *nodes(3))
    rig.observe(pod("first"))
    rig.settle()

    with counted(Columns, "_write_row") as calls:
        rig.observe(*nodes(NODES, "later"), pod("second"))
        calls.settle(rig)

    assert sum(calls.of_decisions) == NODES
    assert max(calls.of_decisions) <= NODES_PER_STEP
    assert "second" in rig.placements()


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────


BUGS: dict[str, tuple[object, str, object, Callable[[], None]]] = {
    "the first decision counts all placed pods": (
        PlacedPodCounts,
        "are_missing",
        False,
        lambda: test_before_the_first_decision_placed_pods_are_counted_in_slices("policy"),
    ),
    "many new nodes are read in one piece": (
        Columns,
        "refresh_slice",
        lambda *_: False,
        test_thousands_of_new_nodes_are_read_in_slices,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, name, planted, check = BUGS[bug]
    monkeypatch.setattr(holder, name, planted)

    with pytest.raises(AssertionError):
        check()
