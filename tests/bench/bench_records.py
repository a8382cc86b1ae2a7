"""Lists of records at 5,000 nodes with 8 different graphics cards each.

Decisions for new classes of pods, the same after the cards of a node changed, and decisions that share an
evaluation.
"""

import json
from collections.abc import Iterable
from dataclasses import replace

from policysched.cluster.cache import ClusterCache
from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compile_program
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from tests.bench.clusters import FACTS, NOW_NS, program
from tests.bench.measuring import Row, median_s, shown
from tests.builders import node, pod

_NODES, _CARDS, _ASKED = 5_000, 8, 40

_POLICY = """policy test version 1
record card {
  health: string
  memory: bytes = "freeMemory" unit "MiB"
  clock: int
  load: ratio
}
input cards: list<card> = node.annotations["cards"] default [] invalid default
input wanted: bytes = pod.labels["memory"] default 1Gi invalid default
filter node_resources_fit
filter healthy require count(cards where card.health == "Healthy" and card.memory >= wanted) >= 2
filter cool reject any(cards where card.load > 99%)
score room weight 3 higher sum(card.memory over cards where card.health == "Healthy") normalize max
score clock weight 1 higher (max(card.clock over cards where card.memory >= wanted) else 0) normalize max
score calm weight 1 lower (min(card.load over cards) else 0) normalize range(0, 1)
"""


def measure() -> Iterable[Row]:
    cache = ClusterCache()
    for index in range(_NODES):
        cache.put_node(_with_cards(node(f"n{index}", cpu="64", memory="256Gi"), index))
    plan, evaluator = compile_program(program(_POLICY)), Evaluator(cache)
    evaluator.build_columns(plan)
    kinds = iter(range(1, 1_000_000))

    def decide(pod: Pod) -> None:
        verdict = evaluator.evaluate(plan, pod, now_ns=NOW_NS, facts=FACTS, samples={})
        assert verdict.selected is not None, f"{pod.full_name} found no node"
        cache.assume(pod, verdict.selected)

    def first_of_a_kind() -> None:
        number = next(kinds)
        decide(pod(f"p{number}", cpu="10m", labels={"memory": f"{1000 + number}Mi"}))

    def another_replica() -> None:
        decide(pod(f"p{next(kinds)}", cpu="10m", labels={"memory": "2Gi"}))

    def after_a_change() -> None:
        number = next(kinds)
        name = NodeName(f"n{number % _NODES}")
        cache.put_node(_with_cards(cache.nodes[name], number + _NODES))
        first_of_a_kind()

    what = f"{_NODES:,} nodes of {_CARDS} cards, 5 lists looked through"
    first_of_a_kind()
    yield Row(f"first decision of a kind, {what}", shown(median_s(first_of_a_kind, _ASKED)), "5 ms")
    yield Row(f"the same after a node's cards changed, {what}", shown(median_s(after_a_change, _ASKED)))
    another_replica()
    yield Row(f"decision of another replica, {what}", shown(median_s(another_replica, 10 * _ASKED)), "1 ms")


def _with_cards(node: Node, seed: int) -> Node:
    cards = [
        {
            "health": "Ill" if (seed + number) % 11 == 0 else "Healthy",
            "freeMemory": 4000 + (seed * 7919 + number * 104729) % 40000,
            "clock": 1000 + (seed * 31 + number * 17) % 900,
            "load": (seed * 13 + number * 7) % 98 / 100,
        }
        for number in range(_CARDS)
    ]
    return replace(node, annotations={**node.annotations, "cards": json.dumps(cards)})
