"""The simulated controller of DaemonSets: one pod for each node that the template fits, tied to it by node affinity, so that the
pod's scheduler binds it.

Supported as in the real controller: the node selector, tolerations of node conditions, a new
template (old pods are deleted). Not supported: surge, revisions, and which taints keep a node out: such a pod stays pending.
"""

from typing import Any

from policysched.sandbox.local_client import ClusterClient
from policysched.sandbox.workloads import ListOwned, is_active, is_ready, owner_reference, pod_from_template

Json = dict[str, Any]

GENERATION = "pod-template-generation"
_TOLERATED = (
    *((name, "NoExecute") for name in ("not-ready", "unreachable")),
    *((name, "NoSchedule") for name in ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")),
)


class DaemonSetController:
    """Creates and deletes pods so that each eligible node has one of the newest template."""

    def __init__(self, local: ClusterClient, owned: ListOwned):
        self._local = local
        self._owned = owned

    def reconcile(self, obj: Json) -> None:
        selector = obj["spec"]["template"]["spec"].get("nodeSelector") or {}
        nodes = [
            node["metadata"]["name"]
            for node in self._local.list("nodes")
            if selector.items() <= (node["metadata"].get("labels") or {}).items()
        ]
        generation = str(obj["metadata"]["generation"])
        pods: dict[str, Json] = {}
        for pod in self._owned("pods", obj):
            node = _node_of(pod)
            is_newest = pod["metadata"]["labels"].get(GENERATION) == generation
            if not is_active(pod) or node not in nodes or node in pods or not is_newest:
                if not pod["metadata"].get("deletionTimestamp"):
                    self._local.delete("pods", pod)
            else:
                pods[node] = pod
        owner = owner_reference("DaemonSet", "apps/v1", obj)
        for name in nodes:
            if name not in pods:
                pod = _for_node(pod_from_template(obj["spec"]["template"], owner), name, generation)
                self._local.create("pods", obj["metadata"]["namespace"], pod)
        ready = sum(is_ready(pod) for pod in pods.values())
        self._local.set_status(
            "daemonsets",
            obj,
            desiredNumberScheduled=len(nodes),
            currentNumberScheduled=sum(bool(pod["spec"].get("nodeName")) for pod in pods.values()),
            updatedNumberScheduled=len(pods),
            numberReady=ready,
            numberAvailable=ready,
            numberUnavailable=len(nodes) - ready or None,
            numberMisscheduled=0,
            observedGeneration=obj["metadata"]["generation"],
        )


def _node_of(pod: Json) -> str:
    affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    name: str = affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
    return name


def _for_node(pod: Json, node: str, generation: str) -> Json:
    spec = pod["spec"]
    pod["metadata"]["labels"][GENERATION] = generation
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    spec["affinity"] = {**(spec.get("affinity") or {}), "nodeAffinity": required}
    spec["tolerations"] = [
        *(spec.get("tolerations") or ()),
        *(
            {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": effect}
            for name, effect in _TOLERATED
        ),
    ]
    return pod
