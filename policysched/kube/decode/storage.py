"""Volumes, claims and the other objects of storage from JSON. Like `wire`: pure, and everything is checked once."""

from collections.abc import Callable, Mapping
from typing import Any

from policysched.kube.decode.affinity import label_selector, node_selector
from policysched.kube.decode.in_tree_volumes import migration, volume_mount
from policysched.kube.decode.reading import reading, size_bytes, strings, text, version
from policysched.model import storage as s
from policysched.model.objects import ClaimKey, CsiNode, NodeName, PodUid, Requirement

Json = Mapping[str, Any]

SELECTED_NODE = "volume.kubernetes.io/selected-node"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
_CLASS = "volume.beta.kubernetes.io/storage-class"
_MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"


def persistent_volume(obj: Json) -> s.PersistentVolume:
    """A v1 PersistentVolume. Raises Malformed."""
    return reading("PersistentVolume", obj, _volume)


def persistent_volume_claim(obj: Json) -> s.PersistentVolumeClaim:
    """A v1 PersistentVolumeClaim. Raises Malformed."""
    return reading("PersistentVolumeClaim", obj, _claim)


def storage_class(obj: Json) -> s.StorageClass:
    """A storage.k8s.io/v1 StorageClass. Raises Malformed."""
    return reading("StorageClass", obj, _class)


def csi_node(obj: Json) -> CsiNode:
    """A storage.k8s.io/v1 CSINode. Raises Malformed."""
    return reading("CSINode", obj, _csi_node)


def csi_driver(obj: Json) -> s.CsiDriver:
    """A storage.k8s.io/v1 CSIDriver. Raises Malformed."""
    return reading("CSIDriver", obj, _csi_driver)


def storage_capacity(obj: Json) -> s.StorageCapacity:
    """A storage.k8s.io/v1 CSIStorageCapacity. Raises Malformed."""
    return reading("CSIStorageCapacity", obj, _capacity)


def volume_attachment(obj: Json) -> s.VolumeAttachment:
    """A storage.k8s.io/v1 VolumeAttachment; without a PersistentVolume it counts nothing. Raises Malformed."""
    return reading("VolumeAttachment", obj, _attachment)


READERS: Mapping[str, Callable[[Json], s.StorageObject | CsiNode]] = {
    "PersistentVolume": persistent_volume,
    "PersistentVolumeClaim": persistent_volume_claim,
    "StorageClass": storage_class,
    "CSINode": csi_node,
    "CSIDriver": csi_driver,
    "CSIStorageCapacity": storage_capacity,
    "VolumeAttachment": volume_attachment,
}
"""By kind."""


def _volume(obj: Json) -> s.PersistentVolume:
    meta, spec = obj["metadata"], obj["spec"]
    labels = strings(meta.get("labels"), "metadata.labels")
    annotations = strings(meta.get("annotations"), "metadata.annotations")
    required = node_selector((spec.get("nodeAffinity") or {}).get("required"))
    claim = spec.get("claimRef")
    return s.PersistentVolume(
        name=text(meta["name"]),
        uid=text(meta.get("uid") or meta["name"]),
        version=version(meta),
        labels=labels,
        class_name=_class_name(annotations, spec),
        capacity_bytes=size_bytes((spec.get("capacity") or {}).get("storage", 0), "spec.capacity.storage"),
        access_modes=_modes(spec),
        block=_is_block(spec),
        attributes_class=text(spec.get("volumeAttributesClassName") or ""),
        required=required,
        claim=None if claim is None else _claim_ref(claim),
        bound_by_controller=BOUND_BY_CONTROLLER in annotations,
        # A file may have no status: such a volume is there to be taken.
        phase=text((obj.get("status") or {}).get("phase") or ("Available" if claim is None else "Bound")),
        deleting=meta.get("deletionTimestamp") is not None,
        mount=volume_mount(spec, labels),
        is_csi=spec.get("csi") is not None,
        migration=migration(spec, labels, required),
    )


def _claim_ref(ref: Json) -> s.ClaimRef:
    key = ClaimKey(text(ref.get("namespace") or ""), text(ref.get("name") or ""))
    return s.ClaimRef(key, text(ref.get("uid") or ""))


def _claim(obj: Json) -> s.PersistentVolumeClaim:
    meta, spec = obj["metadata"], obj["spec"]
    annotations = strings(meta.get("annotations"), "metadata.annotations")
    key = ClaimKey(text(meta.get("namespace") or "default"), text(meta["name"]))
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    selected = annotations.get(SELECTED_NODE)
    owners: list[Json] = [one for one in meta.get("ownerReferences") or () if one.get("controller")]
    return s.PersistentVolumeClaim(
        key=key,
        uid=text(meta.get("uid") or f"{key.namespace}/{key.name}"),
        version=version(meta),
        class_name=_class_name(annotations, spec),
        request_bytes=None if size is None else size_bytes(size, "spec.resources.requests.storage"),
        access_modes=_modes(spec),
        block=_is_block(spec),
        attributes_class=text(spec.get("volumeAttributesClassName") or ""),
        selector=label_selector(spec.get("selector")),
        volume=text(spec.get("volumeName") or ""),
        bind_completed=BIND_COMPLETED in annotations,
        selected_node=None if selected is None else NodeName(selected),
        phase=text((obj.get("status") or {}).get("phase") or "Pending"),
        deleting=meta.get("deletionTimestamp") is not None,
        controller_uid=PodUid(text(owners[0]["uid"])) if owners else None,
    )


def _class_name(annotations: Mapping[str, str], spec: Json) -> str:
    """The annotation of old comes first, as in kube-scheduler."""
    return annotations[_CLASS] if _CLASS in annotations else text(spec.get("storageClassName") or "")


def _modes(spec: Json) -> frozenset[str]:
    return frozenset(text(mode) for mode in spec.get("accessModes") or ())


def _is_block(spec: Json) -> bool:
    match spec.get("volumeMode"):
        case None | "Filesystem":
            return False
        case "Block":
            return True
        case other:
            raise ValueError(f"unknown volumeMode `{other}`")


def _class(obj: Json) -> s.StorageClass:
    mode = obj.get("volumeBindingMode") or "Immediate"
    if mode not in ("Immediate", "WaitForFirstConsumer"):
        raise ValueError(f"unknown volumeBindingMode `{mode}`")
    return s.StorageClass(
        name=text(obj["metadata"]["name"]),
        provisioner=text(obj.get("provisioner") or ""),
        waits=mode == "WaitForFirstConsumer",
        allowed=tuple(
            tuple(
                Requirement(text(one["key"]), "In", tuple(text(value) for value in one.get("values") or ()))
                for one in term.get("matchLabelExpressions") or ()
            )
            for term in obj.get("allowedTopologies") or ()
        ),
    )


def _csi_node(obj: Json) -> CsiNode:
    meta = obj["metadata"]
    limits = {}
    for driver in (obj.get("spec") or {}).get("drivers") or ():
        count = (driver.get("allocatable") or {}).get("count")
        if count is not None:
            limits[text(driver["name"])] = int(count)
    listed = strings(meta.get("annotations"), "metadata.annotations").get(_MIGRATED, "")
    return CsiNode(NodeName(text(meta["name"])), limits, frozenset(listed.split(",") if listed else ()))


def _csi_driver(obj: Json) -> s.CsiDriver:
    spec = obj.get("spec") or {}
    return s.CsiDriver(text(obj["metadata"]["name"]), tracks_capacity=spec.get("storageCapacity") is True)


def _capacity(obj: Json) -> s.StorageCapacity:
    """The size of the largest volume, where the driver says it, is more exact than the room that there is."""
    sizes = ("maximumVolumeSize", "capacity")
    field = next((name for name in sizes if obj.get(name) is not None), None)
    return s.StorageCapacity(
        namespace=text(obj["metadata"].get("namespace") or "default"),
        name=text(obj["metadata"]["name"]),
        class_name=text(obj["storageClassName"]),
        limit_bytes=None if field is None else size_bytes(obj[field], field),
        topology=label_selector(obj.get("nodeTopology")),
    )


def _attachment(obj: Json) -> s.VolumeAttachment:
    spec = obj["spec"]
    attacher = spec.get("attacher") or ""
    volume = (spec.get("source") or {}).get("persistentVolumeName") or ""
    return s.VolumeAttachment(
        text(obj["metadata"]["name"]), NodeName(text(spec["nodeName"])), text(attacher), text(volume)
    )
