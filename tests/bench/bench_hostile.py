"""Pods with thousands of terms: what each costs others once it is placed, and what its own decision costs.

From `PodUpdated` to `BindConfirmed` through a whole scheduler without a network, in processor time: other programs on the
machine do not count.
"""

from collections.abc import Iterable
from dataclasses import replace
from time import process_time

from policysched.gc_tuning import keep_collections_short, raise_gc_thresholds
from policysched.model.identifiers import NodeName
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.scheduler import Scheduler
from tests.bench.measuring import Row, shown
from tests.builders import node, pending, placed, pod
from tests.hostile import HOSTILE_SPECS, TERMS, hostile_pod
from tests.scheduler.rig import START_NS, bundle

_NODES_OTHERS, _NODES_OWN = 300, 1_000
_HOSTILE_PODS, _PLAIN_PODS = 10, 300
_POLICY = {"main.policy": "policy test version 1\ninclude kube_default\n"}


def measure() -> Iterable[Row]:
    raise_gc_thresholds()  # as the program; a full collection by Python's defaults takes 60 to 100 ms here
    quiet = _percentile(_plain_latencies(_scheduler(_NODES_OTHERS)))
    yield Row(f"create to bound, p99, {_NODES_OTHERS} nodes", shown(quiet))
    for kind in HOSTILE_SPECS:
        for state in ("placed", "pending"):
            scheduler = _scheduler(_NODES_OTHERS)
            for index in range(_HOSTILE_PODS):
                hostile = hostile_pod(kind, f"hostile-{index}", scheduler="other")
                observed = placed(hostile, f"node-{index}") if state == "placed" else pending(hostile)
                scheduler.handle(e.PodUpdated(observed), START_NS)
            latency = _percentile(_plain_latencies(scheduler))
            yield Row(
                f"{_HOSTILE_PODS} {state}: {kind}",
                f"{shown(latency)}, {latency / quiet:.1f} times",
                "2 times",
            )
    for kind in HOSTILE_SPECS:
        longest, total = _own_decision_s(kind)
        yield Row(
            f"own decision, {kind}, {_NODES_OWN} nodes", f"{shown(total)}, longest step {shown(longest)}"
        )


def _scheduler(node_count: int) -> Scheduler:
    scheduler = Scheduler()
    scheduler.handle(e.PoliciesUpdated(bundle(_POLICY), "1", None, "ConfigMap ns/policies", ""), START_NS)
    for index in range(node_count):
        zone = f"zone-{index % 3}"
        scheduler.handle(e.NodeUpdated(node(f"node-{index}", cpu="64", memory="256Gi", zone=zone)), START_NS)
    scheduler.handle(e.Synced(), START_NS)
    while scheduler.ready(START_NS):
        scheduler.decide(START_NS)
    return scheduler


def _plain_latencies(scheduler: Scheduler, count: int = _PLAIN_PODS) -> list[float]:
    """Seconds from `PodUpdated` to the answer of the bind, for each plain pod."""
    latencies = []
    keep_collections_short()  # as the program does after its first lists
    for index in range(count):
        plain = pod(f"web-{index}", cpu=f"{100 + index}m", labels={"app": f"web-{index % 10}"})
        started = process_time()
        commands = scheduler.handle(e.PodUpdated(pending(plain)), START_NS)
        while scheduler.ready(START_NS):
            commands += scheduler.decide(START_NS)
        bind = next(command for command in commands if isinstance(command, c.Bind))
        scheduler.handle(e.BindConfirmed(bind.uid, bind.node), START_NS)
        scheduler.handle(e.PodUpdated(placed(plain, bind.node)), START_NS)
        latencies.append(process_time() - started)
    return latencies[10:]  # the first ones build what all use


def _percentile(latencies: list[float]) -> float:
    return sorted(latencies)[len(latencies) * 99 // 100]


def _own_decision_s(kind: str, count: int = TERMS) -> tuple[float, float]:
    """The longest call of the scheduler, and all calls, for one pending hostile pod."""
    scheduler = _scheduler(_NODES_OWN)
    for index in range(1_000):
        name = NodeName(f"node-{index}")
        other = replace(pod(f"other-{index}", labels={"app": f"app-{index}"}), namespace="others")
        scheduler.handle(e.PodUpdated(placed(other, name)), START_NS)
    _plain_latencies(scheduler, 1)
    calls = []
    hostile = pending(hostile_pod(kind, count=count))
    started = process_time()
    scheduler.handle(e.PodUpdated(hostile), START_NS)
    calls.append(process_time() - started)
    while scheduler.ready(START_NS):
        started = process_time()
        scheduler.decide(START_NS)
        calls.append(process_time() - started)
    return max(calls), sum(calls)
