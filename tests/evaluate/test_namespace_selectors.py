"""Selectors of namespaces of a tenant's pods: what they cost with many namespaces, others and their own pods."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policysched.evaluate.columns.interner import Interner
from policysched.evaluate.columns.namespace_scopes import NamespaceTable, SelectedNamespaces
from policysched.evaluate.columns.placed_pods import PlacedPods
from policysched.evaluate.decision_cost import DECISION_BUDGET_DEFAULT, DecisionCost
from policysched.model.affinity import PodSelector
from policysched.model.namespaces import Namespace
from policysched.model.pods import QueuedPodInfo
from policysched.model.selectors import LabelSelector, SelectorRequirement
from tests.builders import node, placed, pod, world
from tests.evaluate.clusters import ClusterRandom
from tests.evaluate.test_hostile import calls_of
from tests.evaluate.test_pod_affinity import Harness
from tests.hostile import HOST, REQUIRED

NAMESPACES = 200


def spaces() -> list[Namespace]:
    return [Namespace(f"ns-{number}", {"team": f"t{number}"}, {}) for number in range(NAMESPACES)]


def apart_from(*teams: list[str], operator: str = "In") -> dict[str, Any]:
    """A term for each list."""
    terms = [
        {
            "topologyKey": HOST,
            "labelSelector": {},
            "namespaceSelector": {
                "matchExpressions": [{"key": "team", "operator": operator, "values": values}]
            },
        }
        for values in teams
    ]
    return {"affinity": {"podAntiAffinity": {REQUIRED: terms}}}


def calls_after_a_namespace_changed(hostile: int) -> int:
    """Of a decision about a plain pod."""
    pods = [placed(pod(f"h{i}", spec=apart_from([f"none-{i}"])), "n0") for i in range(hostile)]
    cache = world([node("n0", cpu="64"), node("n1", cpu="64")], pods, spaces())
    harness = Harness(cache)
    harness.evaluator.build_columns(harness.plan)
    harness.selected("first", namespace="ns-0")
    cache.put_namespace(Namespace("new", {}, {}))
    later = pod("second", namespace="ns-0", cpu="2")
    facts = QueuedPodInfo(0, 0)
    return calls_of(
        lambda: harness.evaluator.evaluate(harness.plan, later, now_ns=0, facts=facts, samples={})
    )


def test_a_changed_namespace_does_not_compare_all_namespaces_with_the_terms_of_placed_pods() -> None:
    hostile = 20

    more = calls_after_a_namespace_changed(hostile) - calls_after_a_namespace_changed(0)

    assert more < hostile * NAMESPACES / 4, f"{more} calls for {hostile} terms"


def decision_with_selectors(namespaces: int) -> int:
    """How many calls it takes to decide about a pod with 40 terms that select nearly all namespaces, each of which has a pod."""
    labels = {f"ns-{i}": {"team": f"t{i}"} for i in range(namespaces)}
    pods = [placed(pod(f"p{name}", namespace=name, labels={"app": name}), "n0") for name in labels]
    cache = world(
        [node("n0", cpu="64", pods="4000"), node("n1", cpu="64")],
        pods,
        [Namespace(name, each, {}) for name, each in labels.items()],
    )
    harness = Harness(cache)
    harness.evaluator.build_columns(harness.plan)
    harness.selected("first", namespace="ns-0", spec=apart_from(["t0"]))
    others = apart_from(*[[f"t{number}"] for number in range(1, 41)], operator="NotIn")
    later = pod("second", namespace="ns-0", spec=others)
    facts = QueuedPodInfo(0, 0)
    return calls_of(
        lambda: harness.evaluator.evaluate(harness.plan, later, now_ns=0, facts=facts, samples={})
    )


def test_a_decision_takes_no_step_for_each_namespace_and_each_pod_that_a_selector_selects() -> None:
    more = decision_with_selectors(1_000) - decision_with_selectors(100)

    assert more < 900, f"{more} calls more for 900 namespaces more"


class Values(tuple[str, ...]):
    __slots__ = ()
    searches = 0

    def __contains__(self, value: object) -> bool:
        type(self).searches += 1
        return super().__contains__(value)


def test_many_values_are_not_compared_with_each_namespace() -> None:
    counts = PlacedPods({space.name: space for space in spaces()}, 8, {HOST})
    values = Values(f"t{number}" for number in range(50, 1_000))
    Values.searches = 0
    selector = LabelSelector((SelectorRequirement("team", "In", values),))

    scope = counts.resolve_scope(PodSelector(("named",), selector, LabelSelector(())))

    assert scope is not None
    assert {name for name in ("named", "ns-49", "ns-50", "ns-199") if name in scope} == {
        "named",
        "ns-50",
        "ns-199",
    }
    assert Values.searches == 0


NAMES, KEYS, VALUES = tuple("abcdef"), ("team", "tier"), ("1", "2")


def draw_selector(rng: ClusterRandom) -> LabelSelector:
    requirements = []
    for key in rng.some((*KEYS, "unknown"), 3) or ["team"]:
        operator = rng.choice(("In", "NotIn", "Exists", "DoesNotExist"))
        values = rng.some((*VALUES, "unknown"), 3) if operator in ("In", "NotIn") else ()
        requirements.append(SelectorRequirement(key, operator, tuple(values)))  # type: ignore[arg-type]
    return LabelSelector(tuple(requirements))


def columns_select_as_comparing_does(seed: int) -> None:
    """While namespaces come, change and go; scopes that are equal at different times select the same."""
    rng, namespaces = ClusterRandom(f"namespaces {seed}"), dict[str, Namespace]()
    table, interned, kept = NamespaceTable(namespaces), Interner[str](), dict[SelectedNamespaces, set[str]]()
    for _ in range(12):
        for name in rng.some(NAMES, 2):
            if rng.one_in(3):
                namespaces.pop(name, None)
            else:
                labels = {key: rng.choice(VALUES) for key in rng.some(KEYS, 2)}
                namespaces[name] = Namespace(name, labels, {"note": rng.choice(VALUES)})
        table = NamespaceTable(namespaces) if rng.one_in(8) else table
        table.update(namespaces)
        interned.code(rng.choice(NAMES))
        selector, named = draw_selector(rng), rng.some(NAMES, 2)

        scope = table.select(selector, named)

        expected = {name for name, each in namespaces.items() if selector.selects(each.labels)} | {*named}
        assert {name for name in NAMES if name in scope} == expected
        assert scope.by_code(interned).tolist() == [name in expected for name in interned.values]
        assert kept.setdefault(scope, expected) == expected


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_columns_select_the_namespaces_that_comparing_one_by_one_selects(seed: int) -> None:
    columns_select_as_comparing_does(seed)


def test_a_planted_row_that_stays_after_a_change_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    add = NamespaceTable._add

    def wrong(self: NamespaceTable, namespace: Namespace) -> None:
        before = self.rows.get(namespace.name)
        add(self, namespace)
        if before is not None:
            self.rows[namespace.name] = before

    monkeypatch.setattr(NamespaceTable, "_add", wrong)

    with pytest.raises(AssertionError):
        for seed in range(100):
            columns_select_as_comparing_does(seed)


def test_rows_of_namespaces_that_changed_are_not_kept_for_ever() -> None:
    namespaces = {"a": Namespace("a", {}, {})}
    counts = PlacedPods(namespaces, 8, {HOST})
    selector = LabelSelector((SelectorRequirement("team", "Exists", ()),))
    scopes = []
    for number in range(2_000):
        namespaces["a"] = Namespace("a", {"team": str(number)}, {})
        counts.namespaces_changed()
        scopes.append(counts.resolve_scope(PodSelector((), selector, LabelSelector(()))))

    assert all(scope is not None and "a" in scope for scope in scopes[-1:])
    assert max(scope.size for scope in scopes if isinstance(scope, SelectedNamespaces)) == 1
    assert counts._namespace_table is not None and counts._namespace_table.row_count < 1_000


def test_a_pod_with_very_many_selectors_of_namespaces_is_over_the_budget() -> None:
    few, many = (pod("p", spec=apart_from(*[[f"t{i}"] for i in range(count)])) for count in (20, 100))

    assert DecisionCost(few).over_budget_message(100, DECISION_BUDGET_DEFAULT) is None
    assert "100 namespace selectors" in str(
        DecisionCost(many).over_budget_message(100, DECISION_BUDGET_DEFAULT)
    )


def test_terms_of_placed_pods_select_by_the_labels_of_the_namespace() -> None:
    cache = world(
        [node("n0", cpu="64"), node("n1", cpu="1")],
        [placed(pod("h", namespace="ns-1", spec=apart_from(["t3"], ["gone"])), "n0")],
        spaces(),
    )
    harness = Harness(cache)

    selected = {name: harness.selected(f"of-{name}", namespace=name) for name in ("ns-1", "ns-3", "unknown")}
    cache.put_namespace(Namespace("ns-1", {"team": "gone"}, {}))

    assert selected == {"ns-1": "n0", "ns-3": "n1", "unknown": "n0"}
    assert harness.selected("later", namespace="ns-1") == "n1"
