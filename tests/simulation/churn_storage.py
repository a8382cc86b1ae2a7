"""Changes to the volumes of a cluster: claims that come and go, and disks that are added to nodes.

There are three storage classes: volumes provisioned for the node of the first consumer, local
disks, and volumes provisioned at once. Each volume belongs to one node.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from policysched.sandbox.local_client import LocalClient
from policysched.sandbox.volume_controller import CLAIMS, STANDARD_CLASS, STORAGE_CLASSES, VOLUMES

Json = dict[str, Any]

_PROVISIONED, _LOCAL, _IMMEDIATE = "standard", "local", "at-once"
_CLASSES: tuple[Json, ...] = (
    STANDARD_CLASS,
    {
        "metadata": {"name": _LOCAL},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    },
    {
        "metadata": {"name": _IMMEDIATE},
        "provisioner": "sandbox.policysched.dev/disk",
        "volumeBindingMode": "Immediate",
        "reclaimPolicy": "Delete",
    },
)
_SIZES = ("1Gi", "2Gi", "5Gi")
_MODES = ("ReadWriteOnce", "ReadWriteOncePod")


class StorageChurn:
    """`log` gets a line for each action; `number` returns a number that was not used before."""

    def __init__(
        self, local: LocalClient, random: Random, *, log: Callable[[str], None], number: Callable[[], int]
    ) -> None:
        self._local = local
        self._random = random
        self._log = log
        self._next_number = number
        self.actions: dict[str, Callable[[], None]] = {
            "create a claim": self.create_claim,
            "delete a claim": self.delete_claim,
            "put in a disk": self.add_local_volume,
        }

    def create_classes(self) -> None:
        for class_ in _CLASSES:
            self._local.create(STORAGE_CLASSES, "", {**class_, "metadata": dict(class_["metadata"])})

    def populate(self) -> None:
        """Half of all clusters start with volumes."""
        if self._random.random() < 0.5:
            for _ in range(4):
                self.create_claim()
                self.add_local_volume()

    def volumes_for_pod(self, namespace: str) -> list[Json]:
        """The `volumes` of a new pod, mostly empty."""
        claims = [claim["metadata"]["name"] for claim in self._local.list(CLAIMS, namespace)]
        if not claims or self._random.random() >= 0.4:
            return []
        chosen = self._random.sample(claims, min(len(claims), self._random.choice((1, 1, 2))))
        return [
            {"name": f"v{at}", "persistentVolumeClaim": {"claimName": name}} for at, name in enumerate(chosen)
        ]

    def create_claim(self) -> None:
        random, name = self._random, f"claim-{self._next_number()}"
        namespace, storage_class = (
            random.choice(("default", "team-a")),
            random.choice((_PROVISIONED, _LOCAL, _IMMEDIATE)),
        )
        spec = {
            "storageClassName": storage_class,
            "accessModes": [random.choice(_MODES)],
            "resources": {"requests": {"storage": random.choice(_SIZES)}},
        }
        self._log(f"claim {namespace}/{name} of class {storage_class}")
        self._local.create(CLAIMS, namespace, {"metadata": {"name": name}, "spec": spec})

    def delete_claim(self) -> None:
        """Delete a claim that no pod uses; the others are protected."""
        used = {
            (pod["metadata"]["namespace"], volume.get("persistentVolumeClaim", {}).get("claimName"))
            for pod in self._local.list("pods")
            for volume in pod["spec"].get("volumes") or ()
        }
        free = [
            claim
            for claim in self._local.list(CLAIMS)
            if (claim["metadata"]["namespace"], claim["metadata"]["name"]) not in used
        ]
        if free:
            claim = self._random.choice(free)
            self._log(f"claim {claim['metadata']['namespace']}/{claim['metadata']['name']} is deleted")
            self._local.delete(CLAIMS, claim)

    def add_local_volume(self) -> None:
        nodes = [node["metadata"] for node in self._local.list("nodes")]
        if not nodes:
            return
        name, node = f"disk-{self._next_number()}", self._random.choice(nodes)["name"]
        on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        spec = {
            "storageClassName": _LOCAL,
            "accessModes": ["ReadWriteOnce", "ReadWriteOncePod"],
            "capacity": {"storage": self._random.choice(_SIZES)},
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": f"/disks/{name}"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
        }
        self._log(f"{name} is put into {node}")
        self._local.create(VOLUMES, "", {"metadata": {"name": name}, "spec": spec})
