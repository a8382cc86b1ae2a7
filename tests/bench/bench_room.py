"""Preemption for one urgent pod and for a whole gang of 100, on 5,000 full nodes with 50,000 pods: the whole
decision, and its longest step, which blocks everything else.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter

from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.scheduler import Scheduler
from tests.bench.clusters import NODES, NOW_NS
from tests.bench.measuring import Row, shown
from tests.builders import node, pending, placed, pod
from tests.scheduler.rig import bundle

POLICY = """policy test version 1
input group: string = pod.labels["group"] optional
gang by group { min = 100 }
include kube_default
preemption { victims = any }
"""
MEMBERS = 100
PODS_A_NODE = 10
ZONES = "topology.kubernetes.io/zone"
_SPREAD = {
    "topologySpreadConstraints": [
        {
            "topologyKey": ZONES,
            "maxSkew": 5,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"group": "g"}},
        }
    ]
}
_APART = {
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {"matchLabels": {"group": "g"}},
                    "topologyKey": "kubernetes.io/hostname",
                }
            ]
        }
    }
}
SPECS = {"": {}, ", spread over zones": _SPREAD, ", a node each": _APART}


@dataclass(frozen=True, slots=True)
class Taken:
    whole_s: float
    longest_s: float
    evicted: int


def full_cluster() -> Scheduler:
    scheduler = Scheduler()
    scheduler.handle(
        e.PoliciesUpdated(bundle({"test.policy": POLICY}), resource_version="1", last_good=None), NOW_NS
    )
    for index in range(NODES):
        full_node = node(f"node-{index}", cpu="16", memory="64Gi", zone=f"zone-{index % 3}")
        scheduler.handle(e.NodeUpdated(full_node), NOW_NS)
    for index in range(NODES * PODS_A_NODE):
        low = pod(
            f"low-{index}",
            cpu="1500m",
            memory="4Gi",
            priority=index // NODES % 3,
            scheduler="other",
            labels={"app": f"app-{index % 20}"},
        )
        scheduler.handle(e.PodUpdated(placed(low, f"node-{index % NODES}")), NOW_NS)
    scheduler.handle(e.Synced(), NOW_NS)
    return scheduler


def decide(scheduler: Scheduler) -> Taken:
    whole_s = longest_s = 0.0
    evicted = 0
    while scheduler.ready(NOW_NS):
        began_s = perf_counter()
        commands = scheduler.decide(NOW_NS)
        took_s = perf_counter() - began_s
        whole_s, longest_s = whole_s + took_s, max(longest_s, took_s)
        evicted += sum(len(command.victims) for command in commands if isinstance(command, c.Evict))
    return Taken(whole_s, longest_s, evicted)


def measure() -> Iterable[Row]:
    for words, spec in SPECS.items():
        scheduler = full_cluster()
        scheduler.handle(e.PodUpdated(pending(pod("first", cpu="1m"))), NOW_NS)
        decide(scheduler)  # columns are there from now on
        urgent = pod("urgent", cpu="4", memory="1Gi", priority=1000, spec=spec)
        scheduler.handle(e.PodUpdated(pending(urgent)), NOW_NS)
        yield from _rows(f"room for a pod{words}", decide(scheduler))
        for index in range(MEMBERS):
            member = pod(f"g-{index}", cpu="4", memory="1Gi", priority=100, labels={"group": "g"}, spec=spec)
            scheduler.handle(e.PodUpdated(pending(member)), NOW_NS)
        yield from _rows(f"room for a gang of {MEMBERS}{words}", decide(scheduler))


def _rows(name: str, taken: Taken) -> Iterable[Row]:
    assert taken.evicted, "somebody has to go"
    yield Row(f"{name}, 5,000 nodes", shown(taken.whole_s))
    yield Row("  its longest step", shown(taken.longest_s), "100 ms")
