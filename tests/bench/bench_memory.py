"""The memory of a process that holds 5,000 nodes, 50,000 pods, the columns and some evaluations."""

import resource
import subprocess
import sys
from collections.abc import Iterable

from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compile_program
from tests.bench.clusters import FACTS, NETWORK_AWARE, NODES, NOW_NS, cluster, program, replicas, samples
from tests.bench.measuring import Row

PODS = 50_000


def measure() -> Iterable[Row]:
    child = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_memory"], check=True, capture_output=True, text=True
    )
    yield Row(f"memory with {NODES:,} nodes and {PODS:,} pods", f"{int(child.stdout) // 1024} MB", "600 MB")


def hold_a_large_cluster() -> int:
    """The greatest resident size of this process, in KiB."""
    evaluator, plan = Evaluator(cluster(pods=PODS)), compile_program(program(NETWORK_AWARE))
    evaluator.build_columns(plan)
    current = samples()
    for size in range(100):
        pod = replicas(1, cpu_milli=100 + size)[0]
        evaluator.evaluate(plan, pod, now_ns=NOW_NS, facts=FACTS, samples=current)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    print(hold_a_large_cluster())
