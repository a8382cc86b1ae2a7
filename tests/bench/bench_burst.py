"""The path of a pod through the core without the network: decoded, queued, decided, bound, confirmed, observed."""

from collections.abc import Iterable
from time import process_time

from policysched.kube.decode import core_objects as wire
from policysched.kube.decode.pods import decode_pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.scheduler import Scheduler
from tests.bench.clusters import DEFAULT, NOW_NS
from tests.bench.measuring import Row, shown
from tests.builders import node_manifest, pod_manifest
from tests.scheduler.rig import bundle

_NODES, _PODS = 5000, 3000


def measure() -> Iterable[Row]:
    scheduler = Scheduler()
    for index in range(_NODES):
        labels = {"topology.kubernetes.io/zone": f"z{index % 3}"}
        observed = wire.decode_node(node_manifest(f"n{index}", cpu="32", memory="128Gi", labels=labels))
        scheduler.handle(e.NodeUpdated(observed), NOW_NS)
    scheduler.handle(e.PoliciesUpdated(bundle({"main.policy": DEFAULT}), resource_version="1"), NOW_NS)
    scheduler.handle(e.Synced(), NOW_NS)
    name = next(iter(scheduler.programs()))
    pods = [pod_manifest(f"p{index}", cpu="100m", memory="64Mi", scheduler=name) for index in range(_PODS)]
    came_s = process_time()
    for pod in pods:
        scheduler.handle(e.PodUpdated(decode_pod(pod)), NOW_NS)
    decided_s = process_time()
    by_name = {pod["metadata"]["name"]: pod for pod in pods}
    while by_name:
        for observed in scheduler.decide(NOW_NS):
            if isinstance(observed, c.Bind):
                pod = by_name.pop(observed.name)
                bound = {**pod, "spec": {**pod["spec"], "nodeName": observed.node}}
                scheduler.handle(e.BindConfirmed(observed.uid, observed.node), NOW_NS)
                scheduler.handle(e.PodUpdated(decode_pod(bound)), NOW_NS)
    done_s = process_time()
    yield Row("a pending pod is read and queued", shown((decided_s - came_s) / _PODS))
    yield Row("a pod is decided, bound and seen bound, 5,000 nodes", shown((done_s - decided_s) / _PODS))
