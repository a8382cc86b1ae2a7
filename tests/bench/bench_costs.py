"""The time of an operation of the static cost (`lang.ir.cost`), for functions of values that differ between all nodes and pods.

Functions whose operations take several times as long as others need a greater weight.
"""

from collections.abc import Iterable
from statistics import median
from time import perf_counter

from policysched.cluster.cache import ClusterCache
from policysched.evaluate import Evaluator, compile_lazily
from policysched.lang.ir.cost import policy_cost
from policysched.model.pods import QueuedPodInfo
from tests.bench.clusters import program
from tests.bench.measuring import Row, shown
from tests.builders import node, pod

_NODES, _RULES, _NOW_NS = 1_000, 60, 10**18
_NUMBER = "(node.pods + pod.priority * {i} + 0.5)"
_TEXT = '(if pod.priority > {i} then (node.labels["name"] else "") else (node.labels["zone"] else ""))'
_VALUES = {
    "a sum": _NUMBER,
    "min": f"min({_NUMBER}, 3.5)",
    "abs": f"abs({_NUMBER} - 3)",
    "round": f"round({_NUMBER}, half_away)",
    "division": f"{_NUMBER} / 3",
    "sqrt": f"sqrt({_NUMBER}) else 0",
    "log": f"log({_NUMBER}) else 0",
    "exp": f"exp({_NUMBER} / 1000)",
    "normal_cdf": f"normal_cdf({_NUMBER}, 3.0, 2.0)",
    "beta_cdf": f"beta_cdf(clamp({_NUMBER} / 1000, 0.0, 1.0), 0.4, 0.2)",
    "==": f'if {_TEXT} == "rack-{{i}}" then {{i}} else 0',
    "in": f'if {_TEXT} in ["rack-{{i}}", "b", "c"] then {{i}} else 0',
    "starts_with": f'if starts_with({_TEXT}, "rack-{{i}}") then {{i}} else 0',
    "rank": f'rank({_TEXT}, ["rack-{{i}}", "z1"])',
    "bucket": f"bucket({_TEXT}, 1{{i}}0)",
}


def measure() -> Iterable[Row]:
    cache = ClusterCache()
    for number in range(_NODES):
        labels = {"zone": f"z{number % 7}", "name": f"rack-{number:04}"}
        cache.put_node(node(f"n{number:04}", cpu="8", labels=labels))
    for name, value in _VALUES.items():
        rules = "".join(
            f"score s{i} weight 1 higher {value.format(i=i)} normalize range(0, 1)\n" for i in range(_RULES)
        )
        checked = program(f"policy bench version 1\n{rules}")
        plan, evaluator, times = compile_lazily(checked), Evaluator(cache, 10**9), []
        for attempt in range(7):
            began = perf_counter()
            evaluator.evaluate(
                plan,
                pod(f"p{attempt}", priority=1000 + attempt),
                now_ns=_NOW_NS,
                facts=QueuedPodInfo(_NOW_NS, 0),
                samples={},
            )
            times.append(perf_counter() - began)
        cost = policy_cost(checked.rules, ()).total
        yield Row(
            f"{_NODES:,} nodes, an operation of `{name}`, {cost / _RULES:.0f} a rule",
            shown(median(times[2:]) / cost),
            "40 µs",
        )
