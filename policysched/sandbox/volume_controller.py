"""A simulated persistent volume controller: binds claims to volumes and provisions volumes.

A claim is bound to the volume that names it or that it names; otherwise, unless its class waits for the
first consumer, to the smallest volume that matches. If the class has a provisioner, a volume is
provisioned, at once or once the scheduler has selected a node. Claims of ephemeral volumes are created
with their pods. When a claim is deleted, its volume is released, or deleted (reclaimPolicy Delete).
Provisioned volumes are accessible from the selected node only, like local disks.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from policysched.cluster.volumes.binder import is_available, matches_claim_spec
from policysched.kube.decode import storage
from policysched.kube.decode.errors import MalformedObject
from policysched.model.storage import (
    NO_PROVISIONER,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from policysched.sandbox.local_client import ClusterClient
from policysched.sandbox.workloads import owner_reference

Json = dict[str, Any]
Value = TypeVar("Value")

CLAIMS, VOLUMES, STORAGE_CLASSES = "persistentvolumeclaims", "persistentvolumes", "storageclasses"
_HOSTNAME = "kubernetes.io/hostname"
_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"

STANDARD_CLASS: Json = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {
        "name": "standard",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": "sandbox.policysched.dev/disk",
    "volumeBindingMode": "WaitForFirstConsumer",
    "reclaimPolicy": "Delete",
}
"""The default storage class of a sandbox."""


class VolumeController:
    """Reconciles claims and volumes. `handlers` maps a resource to its reconcile function."""

    def __init__(self, local: ClusterClient):
        self._local = local
        self.handlers: dict[str, Callable[[Json], None]] = {
            CLAIMS: self._reconcile_claim,
            VOLUMES: self._reconcile_volume,
            STORAGE_CLASSES: lambda _: self._reconcile_unbound_claims(),
            "pods": self._reconcile_pod,
        }

    # ── claims ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _reconcile_claim(self, obj: Json) -> None:
        claim = _decode_or_none(storage.decode_persistent_volume_claim, obj)
        if claim is None or claim.deleting:
            return
        if claim.fully_bound:
            if self._local.get(VOLUMES, "", claim.volume_name) is None and claim.phase != "Lost":
                self._local.set_status(CLAIMS, obj, phase="Lost")
            return
        volume = self._prebound_volume(claim)
        if volume is None and not claim.volume_name:
            storage_class = self._storage_class(claim.class_name)
            waits = storage_class is not None and storage_class.waits_for_first_consumer
            if not waits:
                volume = self._smallest_match(claim)
            provisions = storage_class is not None and storage_class.provisioner not in ("", NO_PROVISIONER)
            if volume is None and provisions and (not waits or claim.selected_node):
                assert storage_class is not None, "a missing class cannot provision"
                volume = self._provision(obj, claim, storage_class)
        if volume is not None:
            self._bind(obj, volume)

    def _prebound_volume(self, claim: PersistentVolumeClaim) -> Json | None:
        """The volume that refers to the claim, or the free volume that the claim refers to."""
        for obj, volume in self._volumes():
            if volume.belongs_to(claim, volume.claim_ref) and matches_claim_spec(volume, claim):
                return obj
        if claim.volume_name:
            named = self._local.get(VOLUMES, "", claim.volume_name)
            if named is not None and not named["spec"].get("claimRef"):
                return named
        return None

    def _smallest_match(self, claim: PersistentVolumeClaim) -> Json | None:
        matches = [
            (volume.capacity_bytes, volume.name, obj)
            for obj, volume in self._volumes()
            if volume.claim_ref is None
            and volume.class_name == claim.class_name
            and matches_claim_spec(volume, claim)
            and is_available(volume, claim)
        ]
        return min(matches, key=lambda match: match[:2])[2] if matches else None

    def _provision(self, obj: Json, claim: PersistentVolumeClaim, storage_class: StorageClass) -> Json:
        class_object = self._local.get(STORAGE_CLASSES, "", storage_class.name) or {}
        body: Json = {
            "metadata": {
                "name": f"pvc-{claim.uid}",
                "annotations": {_PROVISIONED_BY: storage_class.provisioner},
            },
            "spec": {
                "capacity": {
                    "storage": obj["spec"].get("resources", {}).get("requests", {}).get("storage", "1Gi")
                },
                "accessModes": obj["spec"].get("accessModes") or ["ReadWriteOnce"],
                "volumeMode": obj["spec"].get("volumeMode", "Filesystem"),
                "storageClassName": storage_class.name,
                "persistentVolumeReclaimPolicy": class_object.get("reclaimPolicy", "Delete"),
                "claimRef": _claim_ref(obj),
                "csi": {"driver": storage_class.provisioner, "volumeHandle": claim.uid},
                **self._node_affinity(claim.selected_node),
            },
        }
        existing = self._local.get(VOLUMES, "", body["metadata"]["name"])
        return existing if existing is not None else self._local.create(VOLUMES, "", body)

    def _node_affinity(self, node: str | None) -> Json:
        node_object = None if node is None else self._local.get("nodes", "", node)
        hostname = (node_object or {}).get("metadata", {}).get("labels", {}).get(_HOSTNAME)
        if hostname is None:
            return {}
        requirement = {"key": _HOSTNAME, "operator": "In", "values": [hostname]}
        return {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}}

    def _bind(self, claim: Json, volume: Json) -> None:
        """Bind the volume to the claim, then the claim to the volume. Idempotent."""
        ref = volume["spec"].get("claimRef") or {}
        marked = storage.BOUND_BY_CONTROLLER in (volume["metadata"].get("annotations") or {})

        def claimed(current: Json) -> Json:
            current["spec"]["claimRef"] = {**_claim_ref(claim), **(current["spec"].get("claimRef") or {})}
            current["spec"]["claimRef"]["uid"] = claim["metadata"]["uid"]
            if not ref and not marked:
                current["metadata"].setdefault("annotations", {})[storage.BOUND_BY_CONTROLLER] = "yes"
            return current

        def bound(current: Json) -> Json:
            annotations = current["metadata"].setdefault("annotations", {})
            annotations[storage.BIND_COMPLETED] = "yes"
            if not current["spec"].get("volumeName"):
                annotations[storage.BOUND_BY_CONTROLLER] = "yes"
                current["spec"]["volumeName"] = volume["metadata"]["name"]
            return current

        if ref.get("uid") != claim["metadata"]["uid"]:
            self._local.update(VOLUMES, volume, claimed)
        self._local.set_status(VOLUMES, volume, phase="Bound")
        self._local.update(CLAIMS, claim, bound)
        spec = volume["spec"]
        self._local.set_status(
            CLAIMS, claim, phase="Bound", accessModes=spec.get("accessModes"), capacity=spec.get("capacity")
        )

    # ── volumes, classes, pods ─────────────────────────────────────────────────────────────────────────────────────

    def _reconcile_volume(self, obj: Json) -> None:
        ref = obj["spec"].get("claimRef")
        if not ref:
            self._reconcile_unbound_claims()
            return
        claim = self._local.get(CLAIMS, ref.get("namespace", ""), ref.get("name", ""))
        if claim is not None and ref.get("uid", "") in ("", claim["metadata"]["uid"]):
            self._reconcile_claim(claim)
        elif ref.get("uid"):
            if obj["spec"].get("persistentVolumeReclaimPolicy") == "Delete":
                self._local.delete(VOLUMES, obj)
            elif (obj.get("status") or {}).get("phase") != "Released":
                self._local.set_status(VOLUMES, obj, phase="Released")

    def _reconcile_unbound_claims(self) -> None:
        for claim in self._local.list(CLAIMS):
            if (claim.get("status") or {}).get("phase") == "Pending":
                self._reconcile_claim(claim)

    def _reconcile_pod(self, obj: Json) -> None:
        """Create the claims of the pod's ephemeral volumes."""
        metadata = obj["metadata"]
        if metadata.get("deletionTimestamp"):
            return
        for volume in obj["spec"].get("volumes") or ():
            template = (volume.get("ephemeral") or {}).get("volumeClaimTemplate")
            name = f"{metadata['name']}-{volume.get('name')}"
            if template is not None and self._local.get(CLAIMS, metadata["namespace"], name) is None:
                meta = {**(template.get("metadata") or {}), "name": name}
                meta["ownerReferences"] = [owner_reference("Pod", "v1", obj)]
                body = {"metadata": meta, "spec": {**template.get("spec", {})}}
                self._local.create(CLAIMS, metadata["namespace"], body)

    # ── lookups ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _volumes(self) -> list[tuple[Json, PersistentVolume]]:
        decoded = (
            (obj, _decode_or_none(storage.decode_persistent_volume, obj)) for obj in self._local.list(VOLUMES)
        )
        return [(obj, volume) for obj, volume in decoded if volume is not None]

    def _storage_class(self, name: str) -> StorageClass | None:
        obj = self._local.get(STORAGE_CLASSES, "", name) if name else None
        return None if obj is None else _decode_or_none(storage.decode_storage_class, obj)


def released_volume(obj: Json) -> str | None:
    """The name of a deleted claim's volume."""
    name: str | None = obj["spec"].get("volumeName") or None
    return name


def _claim_ref(claim: Json) -> Json:
    metadata = claim["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }


def _decode_or_none(read: Callable[[Json], Value], obj: Json) -> Value | None:
    try:
        return read(obj)
    except MalformedObject:
        return None  # the scheduler reports malformed objects
