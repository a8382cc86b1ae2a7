"""Short builders of volumes, claims and classes: `local_volume("v", node="a")`, `claim("data",
"local")`.
"""

from tests.controlplane.api import Json

VOLUMES = "/api/v1/persistentvolumes"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
MADE_BY_HAND = "kubernetes.io/no-provisioner"


def storage_class(name: str, provisioner: str = MADE_BY_HAND, *, waits: bool = True) -> Json:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer" if waits else "Immediate",
    }


def local_volume(name: str, *, node: str, size: str = "10Gi", of_class: str = "local") -> Json:
    """A volume that can be used on one node only."""
    hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": of_class,
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": f"/mnt/{name}"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}},
        },
    }


def claim(name: str, of_class: str = "local", *, size: str = "5Gi", mode: str = "ReadWriteOnce") -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": [mode],
            "storageClassName": of_class,
            "resources": {"requests": {"storage": size}},
        },
    }


def using(*claims: str) -> list[Json]:
    """The value of a pod's `spec.volumes`."""
    return [
        {"name": f"v{place}", "persistentVolumeClaim": {"claimName": name}}
        for place, name in enumerate(claims)
    ]
