"""The work of the PV controller and a provisioner for a pod with a selected node, done at once.

No controller runs together with the scheduler here: this module executes what it writes to volumes
(a claimRef) and claims (a selected node), so that the scheduler continues to bind the pod.
"""

from typing import Any

from tests.controlplane.api import Api, ApiError

Json = dict[str, Any]

VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
_NOT_FOUND, _CONFLICT = 404, 409
COMPLETED = "pv.kubernetes.io/bind-completed"


def carry_out(api: Api, pod: Json) -> None:
    """Bind the claims of the pod for which the scheduler has written its choice."""
    space = pod["metadata"]["namespace"]
    for volume in pod["spec"].get("volumes", ()):
        name = volume.get("persistentVolumeClaim", {}).get("claimName")
        if "ephemeral" in volume:
            name = f"{pod['metadata']['name']}-{volume['name']}"
        if name is None:
            continue
        path = f"/api/v1/namespaces/{space}/persistentvolumeclaims/{name}"
        try:
            claim = api.get(path)
            if not claim["spec"].get("volumeName"):
                _bind(api, path, claim)
        except ApiError as error:
            if error.status not in (
                _NOT_FOUND,
                _CONFLICT,
            ):  # It is gone, or the scheduler is writing it: retried at the next poll.
                raise


def _bind(api: Api, path: str, claim: Json) -> None:
    uid = claim["metadata"]["uid"]
    meant = [
        volume for volume in api.items(VOLUMES) if (volume["spec"].get("claimRef") or {}).get("uid") == uid
    ]
    if meant:
        volume = meant[0]
    elif claim["metadata"].get("annotations", {}).get(SELECTED_NODE):
        of_class = api.get(f"{CLASSES}/{claim['spec']['storageClassName']}")
        volume = api.post(VOLUMES, _made_for(claim, of_class["provisioner"]))
    else:
        return
    _set_phase(api, f"{VOLUMES}/{volume['metadata']['name']}", volume)
    annotations = {**claim["metadata"].get("annotations", {}), COMPLETED: "yes"}
    claim["metadata"]["annotations"] = annotations
    claim["spec"]["volumeName"] = volume["metadata"]["name"]
    _set_phase(api, path, api.put(path, claim))


def _set_phase(api: Api, path: str, obj: Json) -> None:
    api.put(f"{path}/status", {**obj, "status": {**obj.get("status", {}), "phase": "Bound"}})


def _made_for(claim: Json, driver: str) -> Json:
    """The driver is the class's provisioner, as with CSI, so the volume counts towards the attach
    limit of that driver on a node.
    """
    meta = claim["metadata"]
    reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "uid": meta["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"made-for-{meta['name']}"},
        "spec": {
            "capacity": claim["spec"]["resources"]["requests"],
            "accessModes": claim["spec"]["accessModes"],
            "storageClassName": claim["spec"]["storageClassName"],
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": driver, "volumeHandle": meta["name"]},
            "claimRef": {**reference, "namespace": meta["namespace"], "name": meta["name"]},
        },
    }
