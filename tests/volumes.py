"""Builders of storage objects for tests, like `tests.builders`. Everything is decoded by
`kube.decode.storage`."""

from collections.abc import Mapping
from typing import Any

from policysched.kube.decode import storage
from policysched.model.storage import (
    CsiDriver,
    CsiNode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageCapacity,
    StorageClass,
    VolumeAttachment,
)

BY_HAND = "kubernetes.io/no-provisioner"
HOSTNAME = "kubernetes.io/hostname"


def volume(
    name: str = "v",
    *,
    node: str | None = None,
    size: str = "10Gi",
    of_class: str = "local",
    claim: str | None = None,
    claim_uid: str = "",
    labels: Mapping[str, str] | None = None,
    phase: str | None = None,
    handle: str | None = None,
    version: int = 1,
    spec: Mapping[str, Any] | None = None,
) -> PersistentVolume:
    """`node`: the only node that can use it. `claim`: its claimRef, in the namespace `default`.
    `handle`: of csi.example.com."""
    on_node = {"key": HOSTNAME, "operator": "In", "values": [node]}
    terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}}
    return storage.decode_persistent_volume(
        {
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "resourceVersion": str(version),
                "labels": dict(labels or {}),
            },
            "spec": {
                "capacity": {"storage": size},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": of_class,
                **({"nodeAffinity": terms} if node else {}),
                **({"claimRef": {"namespace": "default", "name": claim, "uid": claim_uid}} if claim else {}),
                **({"csi": {"driver": "csi.example.com", "volumeHandle": handle}} if handle else {}),
                **(spec or {}),
            },
            "status": {"phase": phase} if phase else {},
        }
    )


def claim(
    name: str = "data",
    *,
    of_class: str = "local",
    size: str = "5Gi",
    bound_to: str | None = None,
    mode: str = "ReadWriteOnce",
    selected: str | None = None,
    phase: str = "Pending",
    owner: str | None = None,
    deleting: bool = False,
    version: int = 1,
    spec: Mapping[str, Any] | None = None,
) -> PersistentVolumeClaim:
    """`bound_to`: its volume, and the binding is complete. `owner`: the UID of the pod that it was
    made for."""
    annotations = {"volume.kubernetes.io/selected-node": selected} if selected else {}
    if bound_to:
        annotations["pv.kubernetes.io/bind-completed"] = "yes"
    owners = [{"uid": owner, "controller": True, "kind": "Pod", "name": "p"}] if owner else []
    return storage.decode_persistent_volume_claim(
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"uid-{name}",
                "resourceVersion": str(version),
                "annotations": annotations,
                "ownerReferences": owners,
                **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}),
            },
            "spec": {
                "accessModes": [mode],
                "storageClassName": of_class,
                "resources": {"requests": {"storage": size}},
                **({"volumeName": bound_to} if bound_to else {}),
                **(spec or {}),
            },
            "status": {"phase": "Bound" if bound_to else phase},
        }
    )


def storage_class(
    name: str = "local",
    provisioner: str = BY_HAND,
    *,
    waits: bool = True,
    zones: tuple[str, ...] = (),
) -> StorageClass:
    term = {"matchLabelExpressions": [{"key": "topology.kubernetes.io/zone", "values": list(zones)}]}
    return storage.decode_storage_class(
        {
            "metadata": {"name": name},
            "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer" if waits else "Immediate",
            "allowedTopologies": [term] if zones else [],
        }
    )


def csi_node(name: str = "a", *, limits: Mapping[str, int] | None = None, migrated: str = "") -> CsiNode:
    drivers = [{"name": driver, "allocatable": {"count": count}} for driver, count in (limits or {}).items()]
    annotations = {"storage.alpha.kubernetes.io/migrated-plugins": migrated} if migrated else {}
    return storage.decode_csi_node(
        {"metadata": {"name": name, "annotations": annotations}, "spec": {"drivers": drivers}}
    )


def csi_driver(
    name: str = "csi.example.com", *, tracks_capacity: bool = True, needed_on_node: bool = False
) -> CsiDriver:
    spec = {"storageCapacity": tracks_capacity, "preventPodSchedulingIfMissing": needed_on_node}
    return storage.decode_csi_driver({"metadata": {"name": name}, "spec": spec})


def capacity(
    name: str = "room", *, of_class: str = "made", size: str | None = "10Gi", zone: str | None = None
) -> StorageCapacity:
    labels = {"topology.kubernetes.io/zone": zone} if zone else {}
    return storage.decode_storage_capacity(
        {
            "metadata": {"name": name, "namespace": "kube-system"},
            "storageClassName": of_class,
            "nodeTopology": {"matchLabels": labels},
            **({"capacity": size} if size else {}),
        }
    )


def attachment(name: str, *, node: str, volume: str) -> VolumeAttachment:
    return storage.decode_volume_attachment(
        {
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "attacher": "csi.example.com",
                "source": {"persistentVolumeName": volume},
            },
        }
    )


def using(*claims: str, ephemeral: str | None = None) -> dict[str, Any]:
    """For `pod(..., spec=using("data"))`. `ephemeral`: the name of a volume whose claim is made for
    the pod."""
    volumes: list[dict[str, Any]] = [
        {"name": f"v{place}", "persistentVolumeClaim": {"claimName": name}}
        for place, name in enumerate(claims)
    ]
    if ephemeral is not None:
        volumes.append({"name": ephemeral, "ephemeral": {"volumeClaimTemplate": {}}})
    return {"volumes": volumes}
