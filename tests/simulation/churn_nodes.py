"""Changes to nodes: they join and leave, and their labels, taints and resources change."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from policysched.sandbox.local_client import LocalClient
from policysched.sandbox.nodes import node_status

Json = dict[str, Any]

ZONES = ("z1", "z2")
_CPU = ("1", "2", "4")
_CPU_SMALL = ("1", "2")
_MEMORY = ("2Gi", "4Gi", "8Gi")


class NodeChurn:
    """`log` gets a line for each action; `on_deleted` is called with the name of a node that does not return."""

    def __init__(
        self,
        local: LocalClient,
        random: Random,
        *,
        small: bool,
        log: Callable[[str], None],
        on_deleted: Callable[[str], None],
    ) -> None:
        self._local = local
        self._random = random
        self._cpu = _CPU_SMALL if small else _CPU
        self._log = log
        self._on_deleted = on_deleted
        self.actions: dict[str, Callable[[], None]] = {
            "add a node": self.add,
            "remove a node": self.remove,
            "cordon a node": self.cordon,
            "taint a node": self.taint,
            "relabel a node": self.relabel,
            "resize a node": self.resize,
        }

    def add(self) -> None:
        random = self._random
        names = {node["metadata"]["name"] for node in self._local.list("nodes")}
        free = [f"node-{at}" for at in range(1, 13) if f"node-{at}" not in names]
        if not free:
            return
        name = random.choice(free)
        resources = {
            "cpu": random.choice(self._cpu),
            "memory": random.choice(_MEMORY),
            "pods": "20",
        }
        labels = {
            "kubernetes.io/hostname": name,
            "zone": random.choice(ZONES),
            "pool": random.choice(("gold", "general")),
        }
        status = node_status(name, "2026-01-01T00:00:00Z", at=int(name.partition("-")[2]))
        self._log(f"node {name} joins with {resources['cpu']} cpu, {resources['memory']}")
        self._local.create(
            "nodes",
            "",
            {
                "metadata": {"name": name, "labels": labels},
                "spec": {},
                "status": {"capacity": dict(resources), "allocatable": resources, **status},
            },
        )

    def remove(self) -> None:
        """Its pods are deleted a little later, as by the pod garbage collector; sometimes the node
        returns first.
        """
        node = random_object(self._local, self._random, "nodes")
        if node is None:
            return
        name = node["metadata"]["name"]
        self._log(f"node {name} leaves")
        self._local.delete("nodes", node)
        asyncio.get_running_loop().call_later(self._random.uniform(0.1, 5.0), self._delete_pods_of_node, name)

    def _delete_pods_of_node(self, name: str) -> None:
        if self._local.get("nodes", "", name) is None:
            self._on_deleted(name)
            for pod in self._local.list("pods"):
                if pod["spec"].get("nodeName") == name:
                    self._local.delete("pods", pod, grace_period_s=0)

    def cordon(self) -> None:
        node = random_object(self._local, self._random, "nodes")
        if node is not None:
            cordoned = not node["spec"].get("unschedulable")
            self._log(f"node {node['metadata']['name']} {'is' if cordoned else 'is not'} cordoned")
            spec = {**node["spec"], "unschedulable": cordoned}
            self._local.update("nodes", node, lambda node: {**node, "spec": spec})

    def taint(self) -> None:
        node = random_object(self._local, self._random, "nodes")
        if node is None:
            return
        kept = [taint for taint in node["spec"].get("taints") or () if taint["key"] != "dedicated"]
        if len(kept) == len(node["spec"].get("taints") or ()):
            effect = self._random.choice(("NoSchedule", "PreferNoSchedule"))
            kept.append({"key": "dedicated", "value": "x", "effect": effect})
        self._log(f"node {node['metadata']['name']} has taints {[taint['effect'] for taint in kept]}")
        spec = {**node["spec"], "taints": kept}
        self._local.update("nodes", node, lambda node: {**node, "spec": spec})

    def relabel(self) -> None:
        node = random_object(self._local, self._random, "nodes")
        if node is not None:
            labels = {**labels_of(node), "zone": self._random.choice(ZONES)}
            self._log(f"node {node['metadata']['name']} is in {labels['zone']}")
            self._local.update(
                "nodes", node, lambda node: {**node, "metadata": {**node["metadata"], "labels": labels}}
            )

    def resize(self) -> None:
        node = random_object(self._local, self._random, "nodes")
        if node is not None:
            allocatable = {**node["status"]["allocatable"], "cpu": self._random.choice(self._cpu)}
            self._log(f"node {node['metadata']['name']} has {allocatable['cpu']} cpu now")
            self._local.set_status("nodes", node, allocatable=allocatable)


def random_object(
    local: LocalClient, random: Random, plural: str, wanted: Callable[[Json], bool] = lambda _: True
) -> Json | None:
    """One of the objects that are not being deleted, or None."""
    candidates = [
        obj for obj in local.list(plural) if not obj["metadata"].get("deletionTimestamp") and wanted(obj)
    ]
    return random.choice(candidates) if candidates else None


def labels_of(obj: Json) -> dict[str, str]:
    return dict(obj["metadata"].get("labels") or {})
