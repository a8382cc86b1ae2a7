"""Policies with as many rules, inputs and layers as a team may have."""

import pytest

from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compile_program
from policysched.evaluate.plan.plan import Plan
from tests.builders import node, pod, world
from tests.evaluate.test_hostile import calls_of
from tests.evaluate.test_lists_of_pods import FACTS
from tests.reference.checked import program

READS = 300
APP = 'filter app require (pod.labels["app"] else "") != "x"'
REJECTIONS = [f'filter f{n} reject has node.annotations["k{n}"]' for n in range(READS)]


def decide(evaluator: Evaluator, plan: Plan, **labels: str) -> None:
    evaluator.evaluate(plan, pod(labels=labels), now_ns=0, facts=FACTS, samples={})


@pytest.mark.parametrize(
    "statements",
    [
        [
            f'input i{n}: int = node.annotations["k{n}"] default 0 invalid reject "no number"'
            for n in range(READS)
        ],
        ['layer large when has pod.labels["app"] {', *REJECTIONS, "}"],
        [f"filter f{n} require node.pods < 9" for n in range(READS)]
        + ['layer large when has pod.labels["app"] {']
        + [f'amend f{n} when has node.annotations["k{n}"]' for n in range(READS)]
        + ["}"],
    ],
    ids=["inputs", "a layer", "amended rules"],
)
def test_what_a_policy_reads_of_nodes_is_built_before_it_decides(statements: list[str]) -> None:
    """300 columns are more than are kept of those that only pods need, so each pod read all nodes again: 0.4 s for 1,000."""
    plan = compile_program(program(APP, *statements))

    def calls(node_count: int) -> int:
        evaluator = Evaluator(world([node(f"n{number}") for number in range(node_count)]))
        evaluator.build_columns(plan)
        decide(evaluator, plan, app="a")
        return calls_of(lambda: decide(evaluator, plan, app="b"))

    assert calls(200) < 1.5 * calls(20)
