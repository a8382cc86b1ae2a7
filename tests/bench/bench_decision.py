"""One pod against 5,000 nodes: the first decision, and a decision after each placement."""

from collections.abc import Iterable

from policysched.evaluate import Evaluator, Plan
from policysched.evaluate import compile as compile_program
from policysched.scheduler.policies.assumed_load_tracker import AssumedLoadTracker
from tests.bench.clusters import (
    ASSUMING,
    DEFAULT,
    FACTS,
    NETWORK_AWARE,
    NOW_NS,
    cluster,
    program,
    replicas,
    samples,
)
from tests.bench.measuring import Row, median_s, shown

_POLICIES = (
    ("kube_default", DEFAULT),
    ("network-aware", NETWORK_AWARE),
    ("network-aware with assume", ASSUMING),
)


def measure() -> Iterable[Row]:
    for name, text in _POLICIES:
        yield from _decisions(name, compile_program(program(text)))


def _decisions(name: str, plan: Plan) -> Iterable[Row]:
    cache, assumed = cluster(), AssumedLoadTracker()
    assumed.activate(plan)
    current = {name: assumed.apply_samples(plan.program.name, name, of) for name, of in samples().items()}
    evaluator = Evaluator(cache)
    evaluator.build_columns(plan)
    different = [replicas(1, cpu_milli=101 + size)[0] for size in range(101)]
    alike = replicas(2001)

    def cold() -> None:
        evaluator.evaluate(plan, different.pop(), now_ns=NOW_NS, facts=FACTS, samples=current)

    def shared() -> None:
        pod = alike.pop()
        verdict = evaluator.evaluate(plan, pod, now_ns=NOW_NS, facts=FACTS, samples=current)
        assert verdict.selected is not None, "5,000 nodes have room"
        cache.assume(pod, verdict.selected)
        assumed.pod_placed(pod, None, verdict.selected, NOW_NS)

    cold()
    yield Row(f"cold decision, {name}, 5,000 nodes", shown(median_s(cold, 100)), "3 ms")
    shared()
    yield Row(f"shared decision and assume, {name}", shown(median_s(shared, 2000)), "100 µs")
