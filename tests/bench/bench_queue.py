"""The queue with 100,000 pending pods in 1,000 gangs of 200 teams with quotas: its memory, and its work for each decision.

The work is the CPU time in calls of the queue and of the quotas, from outside, while pods are decided.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable
from time import process_time_ns
from typing import Any

from policysched.gc_tuning import raise_gc_thresholds
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from policysched.scheduler.quotas.quota_accounts import QuotaAccounts
from policysched.scheduler.scheduler import Scheduler
from tests.bench.measuring import Row
from tests.builders import namespace, node, pending, pod
from tests.scheduler.rig import bundle

PODS, GANGS, TEAMS, NODES, DECISIONS = 100_000, 1_000, 200, 1_000, 2_000
START_NS = 1_800_000_000 * 10**9


class _Stopwatch:
    """CPU time in the methods of classes, calls among them counted once."""

    def __init__(self) -> None:
        self.total_ns, self._depth = 0, 0

    def time(self, of: type) -> None:
        for name, method in list(vars(of).items()):
            if callable(method) and not name.startswith("_"):
                setattr(of, name, self._timed(method))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **named: Any) -> Any:
            if self._depth:
                return method(*args, **named)
            self._depth, began = 1, process_time_ns()
            try:
                return method(*args, **named)
            finally:
                self.total_ns += process_time_ns() - began
                self._depth = 0

        return run


def _policy() -> str:
    rows = "\n".join(f'  "t{team}" {{ cpu = 100 borrow any, pods = 1000 }}' for team in range(TEAMS))
    return (
        "policy bench version 1\ninclude kube_default\n"
        f'gang by pod.labels["gang"] {{ min = {PODS // GANGS}  timeout = 1h }}\n'
        f'quota team by namespace.labels["team"] else "none" {{\n{rows}\n  others {{ cpu = 0 }}\n}}\n'
        "queue by pod.quota_share.team, pod.priority desc, pod.queued\n"
    )


def hold_and_decide() -> dict[str, float]:
    """MiB with all pods pending, and µs in the queue for each of the next decisions."""
    raise_gc_thresholds()
    watch = _Stopwatch()
    watch.time(SchedulingQueue)
    watch.time(QuotaAccounts)
    scheduler = Scheduler(SchedulerLimits(binds_in_flight_max=10**9))
    scheduler.handle(
        e.PoliciesUpdated(bundle({"bench.policy": _policy()}), "1", None, "bench", "bench"), START_NS
    )
    for index in range(NODES):
        scheduler.handle(e.NodeUpdated(node(f"n{index}", cpu="64", memory="256Gi")), START_NS)
    for team in range(TEAMS):
        scheduler.handle(e.NamespaceUpdated(namespace(f"ns{team}", team=f"t{team}")), START_NS)
    scheduler.handle(e.Synced(), START_NS)
    for index in range(PODS):
        gang = index % GANGS
        member = pod(
            f"p{index}",
            namespace=f"ns{gang % TEAMS}",
            labels={"gang": f"g{gang}"},
            cpu="100m",
            memory="64Mi",
            scheduler="bench",
            priority=gang % 7,
        )
        scheduler.handle(e.PodUpdated(pending(member)), START_NS)
    held_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    watch.total_ns = binds = 0
    while binds < DECISIONS:
        assert scheduler.ready(START_NS), f"only {binds} pods are bound"
        binds += sum(isinstance(command, c.Bind) for command in scheduler.decide(START_NS))
    return {"mib": held_mib, "queue_us": watch.total_ns / binds / 1000}


def measure() -> Iterable[Row]:
    child = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_queue"], check=True, capture_output=True, text=True
    )
    measured = json.loads(child.stdout)
    held = f"{PODS:,} pending pods in {GANGS:,} gangs, {TEAMS} quotas"
    yield Row(f"memory with {held}", f"{measured['mib']:.0f} MB", "500 MB")
    yield Row("queue and quotas, for each decision", f"{measured['queue_us']:.0f} µs", "100 µs")


if __name__ == "__main__":
    print(json.dumps(hold_and_decide()))
