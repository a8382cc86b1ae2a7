"""Clusters and policies of the size of the performance targets."""

from collections.abc import Mapping

from policysched.cluster.cache import ClusterCache
from policysched.cluster.metric_samples import MetricSamples, Sample, Samples
from policysched.lang.check import check_text
from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod, QueuedPodInfo
from tests.builders import node, placed, pod, world

NODES = 5_000
NOW_NS = 1_767_607_200 * 10**9
FACTS = QueuedPodInfo(queued_ns=NOW_NS - 10**9, attempts=0)

DEFAULT = "policy bench version 1\ninclude kube_default\n"

NETWORK_AWARE = """policy bench version 1
input wanted: string = pod.labels["pool"] optional
input pool: string = node.labels["pool"] default "general"
metric rx: bandwidth {
  query = "q"
  unit = "bit/s"
  join = instance
  every = 15s
  stale = 90s
}
include kube_default
filter pool_match when has wanted require pool == wanted
filter rack_out reject node.labels["rack"] == "r17" says "rack r17 is being repaired"
filter link_cool require rx < 800Mbps missing reject scaleup no says "receiving {rx}"
filter headroom require node.free.memory - pod.requests.memory >= 512Mi
score bandwidth weight 5 lower rx normalize range(0Mbps, 1Gbps) missing worst
score stable weight 2 prefer pool == "general"
"""

ASSUMING = NETWORK_AWARE.replace(
    "metric rx",
    'input traffic: bandwidth = pod.annotations["traffic"] default 40Mbps invalid default\nmetric rx',
).replace("  stale = 90s\n", "  stale = 90s\n  assume = traffic\n")


def program(text: str) -> Program:
    checked = check_text(text)
    assert checked.program is not None, checked.diagnostics[0].message
    return checked.program


def cluster(nodes: int = NODES, pods: int = 0) -> ClusterCache:
    return world(
        nodes=[
            node(
                f"node-{index}",
                cpu="16",
                memory="64Gi",
                zone=f"zone-{index % 3}",
                labels={"rack": f"r{index % 40}", "pool": ("general", "batch")[index % 2]},
                images={f"app-{(index + more) % 50}:1": 10**8 for more in range(10)},
            )
            for index in range(nodes)
        ],
        pods=[
            placed(pod(f"placed-{index}", cpu="100m", memory="256Mi"), f"node-{index % nodes}")
            for index in range(pods)
        ],
    )


def replicas(count: int, *, cpu_milli: int = 250, name: str = "web") -> list[Pod]:
    return [
        pod(f"{name}-{index}", cpu=f"{cpu_milli}m", memory="512Mi", image="app-1:1") for index in range(count)
    ]


def samples(nodes: int = NODES) -> Samples:
    values: Mapping[NodeName, Sample] = {
        NodeName(f"node-{index}"): Sample(float(index % 1000) * 1e6, NOW_NS - 10**9) for index in range(nodes)
    }
    return {"rx": MetricSamples(values, NOW_NS - 10**9)}
