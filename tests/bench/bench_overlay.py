"""A gang of 100 tried on an overlay over 5,000 nodes."""

from collections.abc import Iterable

from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compile_program
from tests.bench.clusters import DEFAULT, FACTS, NOW_NS, cluster, program, replicas
from tests.bench.measuring import Row, median_s, shown


def measure() -> Iterable[Row]:
    evaluator, plan = Evaluator(cluster()), compile_program(program(DEFAULT))
    evaluator.build_columns(plan)
    members = replicas(100, name="worker")

    def trial() -> None:
        overlay = evaluator.overlay()
        for pod in members:
            verdict = evaluator.evaluate(plan, pod, now_ns=NOW_NS, facts=FACTS, samples={}, overlay=overlay)
            assert verdict.selected is not None
            overlay.add_pod(pod, verdict.selected)

    trial()
    yield Row("trial of a gang of 100, 5,000 nodes", shown(median_s(trial, 20)))
