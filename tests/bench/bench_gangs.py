"""One attempt of a gang of 1,000 and of 5,000 on 5,000 nodes: of equal members that fit, and of unequal ones that do not
fit, so that they are tried in both orders and nodes are taken back up to the limit. By a label, and as a PodGroup. In
processor time, as others may use the machine."""

from collections.abc import Iterable
from dataclasses import replace
from time import process_time

from policysched.model.pod_groups import GroupReference, PodGroup, PodGroupKey
from policysched.scheduler import events as e
from policysched.scheduler.scheduler import Scheduler
from tests.bench.clusters import NODES, NOW_NS
from tests.bench.measuring import Row, shown
from tests.builders import node, pending, pod
from tests.scheduler.rig import bundle

MEMBERS, MANY_MEMBERS = 1_000, 5_000
POLICY = """policy test version 1
input group: string = pod.labels["group"] optional
gang by group {{ min = {members} }}
include kube_default
preemption never
"""


POD_GROUPS = """policy test version 1
include pod_groups
include kube_default
preemption never
"""
GROUP_KEY = PodGroupKey("scheduling.k8s.io", "default", "g")


def attempt_s(nodes: int, cpu: tuple[str, ...], *, members: int = MEMBERS, pod_group: bool = False) -> float:
    scheduler = Scheduler()
    text = POD_GROUPS if pod_group else POLICY.format(members=members)
    scheduler.handle(
        e.PoliciesUpdated(bundle({"test.policy": text}), resource_version="1", last_good=None), NOW_NS
    )
    if pod_group:
        scheduler.handle(e.PodGroupApiServed("scheduling.k8s.io", "v1beta1"), NOW_NS)
        scheduler.handle(e.PodGroupUpdated(PodGroup(GROUP_KEY, "uid", "v1beta1", members)), NOW_NS)
    for index in range(nodes):
        scheduler.handle(e.NodeUpdated(node(f"node-{index}", cpu="16", memory="64Gi")), NOW_NS)
    for index in range(members):
        member = pod(f"g-{index}", cpu=cpu[index % len(cpu)], memory="1Gi", labels={"group": "g"})
        if pod_group:
            member = replace(member, group_references=(GroupReference("scheduling.k8s.io", "g"),))
        scheduler.handle(e.PodUpdated(pending(member)), NOW_NS)
    scheduler.handle(e.Synced(), NOW_NS)
    started_s = process_time()
    while scheduler.ready(NOW_NS):
        scheduler.decide(NOW_NS)
    return process_time() - started_s


def measure() -> Iterable[Row]:
    yield Row("a gang of 1,000 equal members, 5,000 nodes", shown(attempt_s(NODES, ("4",))))
    as_group = shown(attempt_s(NODES, ("4",), pod_group=True))
    yield Row("a PodGroup of 1,000 equal members, 5,000 nodes", as_group)
    for name, pod_group in (("gang", False), ("PodGroup", True)):
        attempt = attempt_s(NODES, ("4",), members=MANY_MEMBERS, pod_group=pod_group)
        yield Row(f"a {name} of 5,000 equal members, 5,000 nodes", shown(attempt), "2 s")
    yield Row("a gang of 1,000 unequal members, 5,000 nodes", shown(attempt_s(NODES, ("4", "3", "2"))))
    full = f"a gang of 1,000 equal members, {NODES // 40} nodes, does not fit"
    yield Row(full, shown(attempt_s(NODES // 40, ("4",))))
    full = f"a gang of 1,000 unequal members, {NODES // 40} nodes, does not fit"
    yield Row(full, shown(attempt_s(NODES // 40, ("4", "3", "2"))))
