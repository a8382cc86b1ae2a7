"""Patches that bind a volume to its claim or request a volume. Each names the object's UID, and its version at the decision."""

from typing import Any

from policysched.kube.decode.storage import BOUND_BY_CONTROLLER, SELECTED_NODE
from policysched.scheduler.commands import VolumeToBind, VolumeToProvision

Json = dict[str, Any]


def persistent_volume_path(volume: VolumeToBind) -> str:
    return f"/api/v1/persistentvolumes/{volume.volume}"


def claim_ref_patch(volume: VolumeToBind) -> Json:
    annotations = {"annotations": {BOUND_BY_CONTROLLER: "yes"}} if volume.mark_bound_by_controller else {}
    return {
        "metadata": {"uid": volume.uid, "resourceVersion": str(volume.version), **annotations},
        "spec": {
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": volume.claim.namespace,
                "name": volume.claim.name,
                "uid": volume.claim_uid,
            }
        },
    }


def persistent_volume_claim_path(claim: VolumeToProvision) -> str:
    return f"/api/v1/namespaces/{claim.claim.namespace}/persistentvolumeclaims/{claim.claim.name}"


def selected_node_patch(claim: VolumeToProvision, node: str) -> Json:
    return {
        "metadata": {
            "uid": claim.uid,
            "resourceVersion": str(claim.version),
            "annotations": {SELECTED_NODE: node},
        }
    }
