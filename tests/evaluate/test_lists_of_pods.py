"""What a pod's long annotation costs a decision, in calls of functions, and that its texts are compared but not kept."""

import json

import pytest

from policysched.cluster.cache import ClusterCache
from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compile_program
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.evaluate.vector import elements
from policysched.model.nodes import Node
from policysched.model.pods import Pod, QueuedPodInfo
from tests import reference
from tests.builders import node, placed, pod, world
from tests.evaluate.test_hostile import calls_of
from tests.reference.checked import program

CARDS = (
    "record card { health: string, memory: int }",
    'input cards: list<card> = pod.annotations["cards"] default [] invalid default',
    'input room: int = node.labels["room"] default 0 invalid default',
)
FACTS = QueuedPodInfo(0, 0)


def cluster(node_count: int = 4) -> ClusterCache:
    return world(
        [node(f"n{index}", labels={"room": str(index), "pool": f"p{index}"}) for index in range(node_count)]
    )


def cards(count: int, health: str = "good") -> dict[str, str]:
    return {"cards": json.dumps([{"health": health, "memory": number} for number in range(count)])}


def decision_calls(cache: ClusterCache, rule: str, annotations: dict[str, str]) -> int:
    plan, evaluator = compile_program(program(*CARDS, rule)), Evaluator(cache)
    evaluator.build_columns(plan)
    new_pod = pod(annotations=annotations, labels={"app": "web"})
    return calls_of(lambda: evaluator.evaluate(plan, new_pod, now_ns=0, facts=FACTS, samples={}))


def test_a_long_list_of_the_pod_is_not_compared_with_each_node_by_itself() -> None:
    """It was read for each node, 6.5 s for 1,000 elements and 1,000 nodes."""
    rule = "filter fits require count(cards where card.memory > room) >= 0"

    calls = [decision_calls(cluster(node_count), rule, cards(500)) for node_count in (20, 200)]

    assert calls[1] < 1.5 * calls[0], f"{calls} calls"


def test_parts_of_a_long_text_that_no_node_has_are_not_compared() -> None:
    """A tenth of a second for 50,000 of them."""
    rule = 'filter other require node.name not in split(pod.annotations["parts"] else "", ",")'

    with_parts, without = (
        decision_calls(cluster(), rule, {"parts": ",".join(f"x{number}" for number in range(count))})
        for count in (3_000, 0)
    )

    assert with_parts - without < 4 * 3_000, "split, stripped and looked up"


@pytest.mark.parametrize("rows_max", [1, 7, 65_536])
def test_texts_of_a_list_of_the_pod_equal_those_of_nodes_and_of_the_pod(
    rows_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elements, "_REPEATED_ROWS_MAX", rows_max)
    cache = cluster()
    policy = program(
        *CARDS,
        'let pool: string = node.labels["pool"] else ""',
        "score pool weight 1 higher count(cards where card.health == pool) normalize max",
        'score own weight 1 higher sum(card.memory over cards where card.health == (pod.labels["a"] else "") and room > 0) normalize max',
        'score not_own weight 1 higher count(cards where card.health == (pod.labels["b"] else "") and room >= 0) normalize max',
        'score prefix weight 1 higher count(cards where starts_with(card.health, "no") and room > 1) normalize max',
        "score least weight 1 higher min(card.memory over cards where card.memory > room) else 0 normalize max",
        "score found weight 1 prefer any(cards where card.memory == room)",
    )
    healths = ["p1", "none", "p3", "p1", "no node has it"]
    wanted = json.dumps([{"health": health, "memory": index} for index, health in enumerate(healths)])
    new_pod = pod(annotations={"cards": wanted}, labels={"a": "none", "b": "nothing"})
    plan, evaluator = compile_program(policy), Evaluator(cache)
    evaluator.build_columns(plan)

    fast = evaluator.explain(plan, new_pod, now_ns=0, facts=FACTS, samples={})

    assert fast.scores == reference.evaluate(policy, new_pod, cache, now_ns=0, facts=FACTS, samples={}).scores
    assert [int(cell.raw or 0) for cell in fast.scores["pool"].values()] == [0, 2, 0, 1]
    assert {int(cell.raw or 0) for cell in fast.scores["not_own"].values()} == {0}
    assert "no node has it" not in evaluator._columns.codes.strings.values, "texts of pods are not kept"


def test_the_pods_of_nodes_are_compared_without_a_context_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = 'filter alone require count(pods on node where other.labels["app"] == pod.labels["app"]) < 1'
    cache, made = cluster(), list[Pod]()
    for number in range(300):
        cache.put_pod(placed(pod(f"o{number}", labels={"app": f"a{number}"}), f"n{number % 4}"))
    plan, evaluator = compile_program(program(*CARDS, rule)), Evaluator(cache)
    evaluator.build_columns(plan)
    with_other_pod = EvalContext.with_other_pod

    def recorded(context: EvalContext, other: Pod, node: Node | None = None) -> EvalContext:
        made.append(other)
        return with_other_pod(context, other, node)

    monkeypatch.setattr(EvalContext, "with_other_pod", recorded)
    evaluator.evaluate(plan, pod(labels={"app": "a1"}), now_ns=0, facts=FACTS, samples={})

    assert len(made) == 1
