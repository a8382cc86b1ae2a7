"""Selectors of namespaces of a tenant's pods: what they cost with many namespaces, others and their own pods."""

from typing import Any

from policysched.evaluate.columns.placed_pods import PlacedPods
from policysched.evaluate.decision_cost import DECISION_BUDGET_DEFAULT, DecisionCost
from policysched.model.affinity import PodSelector
from policysched.model.namespaces import Namespace
from policysched.model.pods import QueuedPodInfo
from policysched.model.selectors import LabelSelector, SelectorRequirement
from tests.builders import node, placed, pod, world
from tests.evaluate.test_hostile import calls_of
from tests.evaluate.test_pod_affinity import Harness
from tests.hostile import HOST, REQUIRED

NAMESPACES = 200


def spaces() -> list[Namespace]:
    return [Namespace(f"ns-{number}", {"team": f"t{number}"}, {}) for number in range(NAMESPACES)]


def apart_from(*teams: list[str]) -> dict[str, Any]:
    """A term for each list."""
    terms = [
        {
            "topologyKey": HOST,
            "labelSelector": {},
            "namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "In", "values": values}]},
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

    assert scope == {"named", *(f"ns-{number}" for number in range(50, NAMESPACES))}
    assert Values.searches == 0


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
