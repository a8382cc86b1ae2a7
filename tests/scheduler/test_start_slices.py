"""At a start nodes are read, placed pods counted and pods queued in slices, between which events are applied, and nothing is attempted
before the last one; thousands of new nodes are read in slices, too."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from policysched.evaluate.columns.columns import NODES_PER_STEP, Columns
from policysched.evaluate.columns.placed_pod_counts import ITEMS_PER_STEP, PlacedPodCounts
from policysched.evaluate.columns.placed_pods import PlacedPods
from policysched.scheduler import pod_enqueuer
from policysched.scheduler.policy_membership import PolicyMembership
from policysched.scheduler.policy_text_events import COUNTED_AT_ONCE_MAX, PolicyTextEvents
from policysched.scheduler.sliced_changes import PODS_PER_SLICE
from tests.builders import node, placed, pod
from tests.hostile import HOST, PREFERRED, not_in
from tests.scheduler.rig import FIT, GANG, Rig

DEFAULT = "policy test version 1\ninclude kube_default\npreemption never\n"
TERMS, PODS, NODES = 4, 200, 2 * NODES_PER_STEP
GANGS = GANG.format(more="")
OTHER = FIT.replace("policy test", "policy other")


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
def counted(owner: object, method: str) -> Iterator[Calls]:
    calls, right = Calls(), getattr(owner, method)

    def counting(*of: Any, **more: Any) -> object:
        calls.now += 1
        return right(*of, **more)

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


def waiting(policy: str, first: str, *others: Any) -> Rig:
    """The pods are in gangs of 50, if the policy has gangs, and no node takes them."""
    texts = {"main.policy": policy, "other.policy": OTHER}
    many = [pod(f"p{at}", labels={"group": f"g{at // 50}", "least": "50"}, cpu="2") for at in range(PODS)]
    rig = Rig(texts if first == "policy" else None, node("a", cpu="1"), *many, *others)
    if first != "policy":
        rig.apply_policies(texts)
    return rig


@FIRST
@pytest.mark.parametrize("policy", [FIT, GANGS], ids=["pods", "gangs"])
def test_at_a_start_pods_are_queued_in_slices_and_evaluated_once(policy: str, first: str) -> None:
    with counted(pod_enqueuer, "evaluate_pre_enqueue") as calls:
        rig = waiting(policy, first)
        at_start = calls.now
        calls.settle(rig)

    assert at_start == PODS_PER_SLICE
    assert max(calls.of_decisions) <= PODS_PER_SLICE
    assert at_start + sum(calls.of_decisions) == PODS
    assert len(rig.scheduler.core.gangs._gangs) == (PODS // 50 if policy == GANGS else 0)


@FIRST
def test_at_a_start_placed_members_of_gangs_are_counted_in_slices(first: str) -> None:
    """The last one is placed, which needs all of them."""
    count = COUNTED_AT_ONCE_MAX + PODS
    labels = {"group": "g", "least": str(count + 1)}
    texts = {"main.policy": GANGS}
    running = [placed(pod(f"p{at}", labels=labels), "a") for at in range(count)]
    with counted(PolicyMembership, "count_in_gang") as calls:
        rig = Rig(texts if first == "policy" else None, node("a", pods="1000"), *running)
        rig.observe(pod("last", labels=labels))
        if first != "policy":
            rig.apply_policies(texts)
        at_start = calls.now
        calls.settle(rig)

    assert at_start <= COUNTED_AT_ONCE_MAX + PODS_PER_SLICE
    assert max(calls.of_decisions) <= PODS_PER_SLICE
    assert rig.placements().keys() == {"last"}


@FIRST
@pytest.mark.parametrize("policy", [FIT, GANGS], ids=["pods", "gangs"])
def test_at_a_start_nothing_is_attempted_before_the_pods_of_all_policies_are_queued(
    policy: str, first: str
) -> None:
    """The last one of the many is the most important of all, and there is room for one."""
    low, high = pod("low", cpu="1", scheduler="other"), pod("high", cpu="1", priority=100)

    rig = waiting(policy, first, low, high)
    rig.settle()

    assert rig.placements().keys() == {"high"}


def test_at_a_start_a_pod_that_comes_between_two_slices_has_its_place() -> None:
    rig = waiting(FIT, "policy", pod("low", cpu="1", scheduler="other"))

    rig.observe(pod("high", cpu="1", priority=100))
    rig.settle()

    assert rig.placements().keys() == {"high"}


def test_a_text_that_changes_before_all_pods_are_queued_reaches_all_of_them() -> None:
    rig = waiting(FIT, "policy")

    rig.apply_policies({"main.policy": GANGS, "other.policy": OTHER})
    rig.observe(node("large", cpu="1000", pods="1000"))
    rig.settle()

    assert len(rig.placements()) == PODS
    assert not rig.scheduler._policy_text_events._before_attempts


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────


BUGS: dict[str, tuple[object, str, object, Callable[[], None]]] = {
    "the first decision counts all placed pods": (
        PlacedPodCounts,
        "are_missing",
        False,
        lambda: test_before_the_first_decision_placed_pods_are_counted_in_slices("policy"),
    ),
    "pods of a policy are attempted before those of another are queued": (
        PolicyTextEvents,
        "take_first",
        lambda *_: False,
        lambda: test_at_a_start_nothing_is_attempted_before_the_pods_of_all_policies_are_queued(
            FIT, "policy"
        ),
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


def test_nodes_that_change_all_the_time_are_read_before_a_pod_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 5,000 nodes whose status changes each 10 s, a pod each second waited for 500: 19 to 25 ms."""
    read: list[str] = []
    write_row = Columns._write_row
    monkeypatch.setattr(
        Columns, "_write_row", lambda self, row, node: read.append(node.name) or write_row(self, row, node)
    )
    rig = Rig(FIT, *[node(f"n{number}", cpu="4") for number in range(200)])
    rig.settle()
    for number in range(200):
        rig.observe(node(f"n{number}", cpu="8"))
        rig.settle()
    before = len(read)

    rig.observe(pod("web", cpu="6"))
    rig.settle()

    assert len(read) - before < 40 and "web" in rig.placements()
