"""The pause of decisions when a policy is replaced: columns are built in slices, then the first pod is evaluated."""

from collections.abc import Iterable
from time import perf_counter

from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compile_program
from tests.bench.clusters import DEFAULT, FACTS, NETWORK_AWARE, NOW_NS, cluster, program, replicas, samples
from tests.bench.measuring import Row, median_s, shown


def measure() -> Iterable[Row]:
    evaluator, new = Evaluator(cluster()), program(NETWORK_AWARE)
    evaluator.build_columns(compile_program(program(DEFAULT)))
    compiled = median_s(lambda: compile_program(new), 20)
    plan = compile_program(new)
    longest, started = 0.0, perf_counter()
    for _ in evaluator.build_columns_in_steps(plan):
        longest = max(longest, perf_counter() - started)
        started = perf_counter()
    current, pod = samples(), replicas(1)[0]
    started = perf_counter()
    evaluator.evaluate(plan, pod, now_ns=NOW_NS, facts=FACTS, samples=current)
    first = perf_counter() - started
    yield Row("replacing a policy: lowering it", shown(compiled))
    yield Row("replacing a policy: longest slice of columns", shown(longest), "5 ms")
    yield Row("replacing a policy: the first decision", shown(first))
