"""Which evictions violate a disruption budget."""

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policysched.cluster import selector_index
from policysched.cluster.disruption_budgets import (
    BudgetsAfterEvictions,
    DisruptionBudgets,
    ViolationCounter,
    split_by_budget,
)
from policysched.kube.decode import core_objects as wire
from policysched.kube.decode.errors import MalformedObject
from policysched.model.pods import Pod
from policysched.model.selectors import LabelSelector, SelectorOperator, SelectorRequirement
from policysched.model.workloads import DisruptionBudget
from tests.builders import pod


def budget(
    allowed: int = 0, *, labels: dict[str, str] | None = None, disrupted: tuple[str, ...] = (), **spec: object
) -> DisruptionBudget:
    chosen = {"app": "db"} if labels is None else labels
    return wire.decode_disruption_budget(
        {
            "metadata": {"name": "db", "namespace": "default"},
            "spec": {"selector": {"matchLabels": chosen}, **spec},
            "status": {
                "disruptionsAllowed": allowed,
                "disruptedPods": dict.fromkeys(disrupted, "2026-01-01T00:00:00Z"),
            },
        }
    )


def db(name: str, **more: object) -> Pod:
    return pod(name, **{"labels": {"app": "db"}, **more})


def violating(pods: list[Pod], *budgets: DisruptionBudget) -> list[str]:
    first, others = split_by_budget(pods, budgets)
    assert {pod.uid for pod in first} | {pod.uid for pod in others} == {pod.uid for pod in pods}
    return [pod.name for pod in first]


def test_each_evicted_pod_uses_one_disruption() -> None:
    assert violating([db("a"), db("b"), db("c")], budget(allowed=2)) == ["c"]


def test_a_budget_selects_only_labelled_pods_of_its_namespace() -> None:
    pods = [db("a", namespace="other"), db("b", labels={"app": "web"}), db("c", labels={})]

    assert violating(pods, budget()) == []


def test_a_disrupted_pod_does_not_count_again() -> None:
    assert violating([db("a"), db("b")], budget(allowed=1, disrupted=("a",))) == []


def test_an_empty_or_missing_selector_selects_no_pod() -> None:
    assert violating([db("a")], budget(labels={}), budget(selector=None)) == []


def test_a_pod_of_two_budgets_violates_if_either_is_exceeded() -> None:
    assert violating([db("a")], budget(allowed=1), budget(allowed=0)) == ["a"]


def test_an_invalid_budget_is_malformed() -> None:
    with pytest.raises(MalformedObject):
        wire.decode_disruption_budget(
            {"metadata": {"name": "x"}, "spec": {"selector": {"matchLabels": "app"}}}
        )


LABELS = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"]))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_the_index_agrees_with_a_comparison_of_all(data: st.DataObject) -> None:
    index, plain = DisruptionBudgets(), dict[tuple[str, str], DisruptionBudget]()
    for _ in range(data.draw(st.integers(1, 12))):
        namespace = data.draw(st.sampled_from(["default", "other"]))
        name = data.draw(st.sampled_from(["one", "two", "three"]))
        if data.draw(st.booleans()):
            changed = replace(
                budget(data.draw(st.integers(-1, 2)), labels=data.draw(LABELS), disrupted=("p0",)),
                namespace=namespace,
                name=name,
            )
            index.put(changed)
            plain[namespace, name] = changed
        else:
            index.remove(namespace, name)
            plain.pop((namespace, name), None)
        pods = [
            pod(
                f"p{number}",
                namespace=data.draw(st.sampled_from(["default", "other"])),
                labels=data.draw(LABELS),
            )
            for number in range(3)
        ]
        assert split_by_budget(pods, index) == split_by_budget(pods, list(plain.values()))
        assert len(index) == len(plain) and all(budget in index for budget in plain.values())


def lines_run(call: Callable[[], object]) -> int:
    """How many lines of the modules of budgets run in a call."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if (
            "disruption_budgets" not in frame.f_code.co_filename
            and "selector" not in frame.f_code.co_filename
        ):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def numbered(operator: SelectorOperator, number: int) -> DisruptionBudget:
    """A budget that requires something of the same two labels as its siblings, with another value."""
    requirements = (
        SelectorRequirement("number", operator, (str(number),) if operator in ("In", "NotIn") else ()),
        SelectorRequirement("app", "DoesNotExist" if number % 2 else "NotIn", () if number % 2 else ("db",)),
    )
    return replace(budget(), name=f"b{number}", selector=LabelSelector(requirements))


@pytest.mark.parametrize("operator", ["In", "NotIn", "Exists", "DoesNotExist"])
def test_thousands_of_budgets_cost_as_much_as_a_few(operator: SelectorOperator) -> None:
    """Each candidate node of each preemption asks. Pods that are no two equal have labels of their own."""
    steps: list[int] = []
    for count in (20, 2_000):
        index = DisruptionBudgets()
        for number in range(count):
            index.put(numbered(operator, number))
        pods = [db(f"p{number}", labels={"app": "db", "number": str(number)}) for number in range(50)]
        steps.append(lines_run(lambda index=index, pods=pods: split_by_budget(pods, index)))

    assert steps[0] == steps[1]


def test_a_changed_budget_is_not_compared_with_pods_that_are_gone() -> None:
    """Whoever relabels pods and writes a budget all the time would otherwise stop everybody at each write."""
    index = DisruptionBudgets()
    index.put(replace(budget(), name="first"))

    def write() -> None:
        index.put(replace(budget(allowed=2), name="first"))
        index.put(replace(budget(labels={"number": "7"}), name="new"))
        index.remove("default", "new")

    first = lines_run(write)
    for number in range(1_000):
        index.selecting(db(f"gone-{number}", labels={"app": "db", "number": str(number)}))

    assert lines_run(write) == first


def test_a_pod_that_very_many_budgets_select_violates_one() -> None:
    """A thousand budgets that each select a thousand pods would be a million disruptions to count, for each preemption."""
    index = DisruptionBudgets()
    for number in range(16):
        index.put(replace(budget(allowed=5), name=f"db-{number}"))
    some = violating_in(index, [db("a"), db("b")])
    index.put(replace(budget(allowed=5), name="db-16"))
    web = replace(budget(allowed=1, labels={"app": "web"}), name="web")
    index.put(web)

    assert (some, violating_in(index, [db("a"), db("w", labels={"app": "web"})])) == ([], ["a"])
    assert index.selecting(db("w", labels={"app": "web"})) == [web]


def test_a_pod_whose_budgets_require_something_of_very_many_labels_violates_one() -> None:
    labels = {f"key-{number}": "v" for number in range(33)}
    index = DisruptionBudgets()
    index.put(budget(allowed=5, labels=dict(list(labels.items())[:32])))
    some = violating_in(index, [db("a", labels=labels)])
    index.put(budget(allowed=5, labels=labels))

    assert (some, violating_in(index, [db("a", labels=labels)])) == ([], ["a"])


def test_each_pod_of_a_namespace_with_very_many_budgets_violates_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the values that their selectors list would otherwise take memory for each budget of the namespace."""
    monkeypatch.setattr(selector_index, "SELECTORS_MAX", 3)
    index, plain = DisruptionBudgets(), dict[str, DisruptionBudget]()
    pods = [db(f"p{number}", labels={"number": str(number)}) for number in range(6)]
    for number in range(6):
        each = replace(budget(allowed=number % 2, labels={"number": str(number)}), name=f"b{number}")
        index.put(each)
        plain[each.name] = each
        few = split_by_budget(pods, list(plain.values()))[0] if number < 3 else pods
        assert split_by_budget(pods, index)[0] == few
    index.put(replace(plain["b4"], selector=LabelSelector(())))
    del plain["b4"]
    for name in ("b1", "b5"):
        assert violating_in(index, pods) == [pod.name for pod in pods]
        index.remove("default", name)
        del plain[name]

    assert split_by_budget(pods, index) == split_by_budget(pods, list(plain.values()))


def violating_in(index: DisruptionBudgets, pods: list[Pod]) -> list[str]:
    return [pod.name for pod in split_by_budget(pods, index)[0]]


def test_a_node_does_not_ask_about_all_budgets_of_a_gang() -> None:
    """Each node with a member of the gang asks."""
    index = DisruptionBudgets()
    index.put(replace(budget(allowed=100), name="all"))
    for number in range(1_000):
        index.put(replace(budget(allowed=number % 2, labels={"number": str(number)}), name=f"of-{number}"))
    members = [db(f"p{number}", labels={"app": "db", "number": str(number)}) for number in range(1_000)]
    counters = [ViolationCounter(members[:count], index) for count in (100, 1_000)]

    steps = [lines_run(lambda counter=counter: counter.evict({members[0].uid}, {})) for counter in counters]

    assert steps[0] == steps[1]
    assert [counter.evict({members[0].uid}, {}) for counter in counters] == [50, 950], "of all members"


def test_budgets_after_evictions_cost_as_much_as_before() -> None:
    """Each member of a gang that preempts asks, and evicts some."""
    index = DisruptionBudgets()
    for number in range(2_000):
        index.put(replace(budget(allowed=1, labels={"number": str(number)}), name=f"db-{number}"))
    pods = [db(f"p{number}", labels={"number": str(number)}) for number in range(3)]
    after = BudgetsAfterEvictions(index)

    steps = [lines_run(lambda each=each: after.evict([each])) for each in pods]
    others = [*pods[:1], db("x", labels={"number": "3"}), pod("unlabelled", labels={})]
    violating_after, _ = split_by_budget(others, after)

    assert max(steps) == min(steps) < 100
    assert [pod.name for pod in violating_after] == ["p0"]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.data())
def test_budgets_after_evictions_are_as_if_all_pods_were_evicted_together(
    allowed: list[int], data: st.DataObject
) -> None:
    index = DisruptionBudgets()
    for number, count in enumerate(allowed):
        selected = {"app": data.draw(st.sampled_from(["db", "web"]))}
        index.put(replace(budget(count, labels=selected), name=f"db-{number}"))
    pods = [
        pod(f"p{number}", labels={"app": data.draw(st.sampled_from(["db", "web", "x"]))})
        for number in range(5)
    ]
    evicted = data.draw(st.integers(0, 5))
    after = BudgetsAfterEvictions(index)

    for one_by_one in pods[:evicted]:
        after.evict([one_by_one])

    together = {pod.uid for pod in split_by_budget(pods, index)[0]}
    rest = {pod.uid for pod in split_by_budget(pods[evicted:], after)[0]}
    assert rest == together & {pod.uid for pod in pods[evicted:]}
    assert len(list(after)) == len(after) == len(allowed)


def test_a_budget_with_a_very_large_selector_is_malformed() -> None:
    """Each version would take 80 ms of the event loop to decode, for 20,000 requirements."""
    with pytest.raises(MalformedObject, match="more than 1000 requirements and values"):
        budget(labels={f"key-{number}": "v" for number in range(1_001)})


SIZES = st.lists(st.tuples(LABELS, st.sampled_from("nab")), max_size=14)
ALLOWED = st.lists(st.tuples(LABELS, st.integers(-1, 4)), max_size=4)


@given(SIZES, ALLOWED)
@settings(max_examples=400, deadline=None)
def test_a_counter_agrees_with_the_pods_one_by_one(
    sizes: list[tuple[dict[str, str], str]], allowed: list[tuple[dict[str, str], int]]
) -> None:
    """Pods of a node (every third of the two gangs, too) are evicted first, then the rest of each gang."""
    of = {f"p{number}": where for number, (_, where) in enumerate(sizes)}
    pods = [pod(f"p{number}", labels=labels) for number, (labels, _) in enumerate(sizes)]
    budgets = [
        replace(budget(number, labels=labels), name=f"b{index}")
        for index, (labels, number) in enumerate(allowed)
    ]
    on_node = [one for index, one in enumerate(pods) if of[one.name] == "n" or index % 3 == 0]
    gangs = [[one for one in pods if of[one.name] == gang] for gang in "ab"]
    uids = {one.uid for one in on_node}
    rest = [[one for one in gang if one.uid not in uids] for gang in gangs]
    violating_uids = {one.uid for one in split_by_budget([*on_node, *rest[0], *rest[1]], budgets)[0]}

    left: dict[int, int] = {}
    split_by_budget(on_node, budgets, left)
    counts = [ViolationCounter(gang, budgets).evict(uids, left) for gang in gangs]

    assert counts == [sum(one.uid in violating_uids for one in part) for part in rest]
