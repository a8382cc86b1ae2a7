"""The cost of building the columns, and of refreshing them after a change of the cluster."""

from collections.abc import Iterable
from dataclasses import replace

from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compile_program
from tests.bench.clusters import NETWORK_AWARE, NODES, cluster, program
from tests.bench.measuring import Row, median_s, shown


def measure() -> Iterable[Row]:
    cache, plan = cluster(), compile_program(program(NETWORK_AWARE))
    evaluator = Evaluator(cache)
    evaluator.build_columns(plan)
    names = sorted(cache.nodes)

    def hundred_nodes_change() -> None:
        for name in names[:100]:
            node = cache.nodes[name]
            cache.put_node(replace(node, created_ns=node.created_ns + 1))
        evaluator.overlay()

    yield Row("refresh of 100 changed nodes", shown(median_s(hundred_nodes_change, 20)))

    def anew() -> None:
        Evaluator(cache).build_columns(plan)

    yield Row(f"columns for {NODES:,} nodes from nothing", shown(median_s(anew, 5)))
