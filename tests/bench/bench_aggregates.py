"""Scores with an aggregate over 5,000 candidates, as they are and with the pod placed on each."""

from collections.abc import Iterable

from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compile_program
from tests.bench.clusters import FACTS, NODES, NOW_NS, cluster, program, replicas
from tests.bench.measuring import Row, median_s, shown

_BUSY = "node.requested.cpu / node.allocatable.cpu else 1"
_SCORES = (
    ("no aggregate", f"higher {_BUSY}"),
    ("mean over nodes", f"lower mean of {_BUSY} over nodes"),
    ("mean after placing", f"lower mean of {_BUSY} over nodes after placing"),
    ("stddev after placing", f"lower stddev of {_BUSY} over nodes after placing"),
    ("max after placing", f"lower max of {_BUSY} over nodes after placing"),
)


def measure() -> Iterable[Row]:
    for name, value in _SCORES:
        text = f"policy bench version 1\ninclude kube_default\nscore own weight 5 {value} normalize range(0, 1)\n"
        yield _placements(name, text)


def _placements(name: str, text: str) -> Row:
    """Each decision follows a placement, which changes the aggregate of all nodes."""
    plan, cache = compile_program(program(text)), cluster(pods=NODES)
    evaluator = Evaluator(cache)
    evaluator.build_columns(plan)
    alike = replicas(501)

    def decide() -> None:
        pod = alike.pop()
        verdict = evaluator.evaluate(plan, pod, now_ns=NOW_NS, facts=FACTS, samples={})
        assert verdict.selected is not None, "5,000 nodes have room"
        cache.assume(pod, verdict.selected)

    decide()
    return Row(f"decision and assume, {name}, {NODES:,} nodes", shown(median_s(decide, 500)))
