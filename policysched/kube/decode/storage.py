"""Decodes PersistentVolumes, their claims, and the other storage objects."""

from collections.abc import Callable, Mapping
from typing import Any

from policysched.kube.decode.affinity import (
    decode_label_selector,
    decode_node_selector,
    decode_short_selector,
)
from policysched.kube.decode.primitives import (
    decode_object,
    resource_version,
    size_bytes,
    string_map,
    text,
)
from policysched.kube.decode.volumes import decode_migration, decode_volume_mount
from policysched.model import storage as s
from policysched.model.identifiers import NodeName, PodUid, VolumeClaimKey
from policysched.model.selectors import SelectorRequirement
from policysched.model.storage import CsiNode

Json = Mapping[str, Any]

SELECTED_NODE = "volume.kubernetes.io/selected-node"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
_STORAGE_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
_MIGRATED_PLUGINS_ANNOTATION = "storage.alpha.kubernetes.io/migrated-plugins"


def decode_persistent_volume(obj: Json) -> s.PersistentVolume:
    """A v1 PersistentVolume. Raises MalformedObject."""
    return decode_object("PersistentVolume", obj, _volume)


def decode_persistent_volume_claim(obj: Json) -> s.PersistentVolumeClaim:
    """A v1 PersistentVolumeClaim. Raises MalformedObject."""
    return decode_object("PersistentVolumeClaim", obj, _claim)


def decode_storage_class(obj: Json) -> s.StorageClass:
    """A storage.k8s.io/v1 StorageClass. Raises MalformedObject."""
    return decode_object("StorageClass", obj, _class)


def decode_csi_node(obj: Json) -> CsiNode:
    """A storage.k8s.io/v1 CSINode. Raises MalformedObject."""
    return decode_object("CSINode", obj, _csi_node)


def decode_csi_driver(obj: Json) -> s.CsiDriver:
    """A storage.k8s.io/v1 CSIDriver. Raises MalformedObject."""
    return decode_object("CSIDriver", obj, _csi_driver)


def decode_storage_capacity(obj: Json) -> s.StorageCapacity:
    """A storage.k8s.io/v1 CSIStorageCapacity. Raises MalformedObject."""
    return decode_object("CSIStorageCapacity", obj, _capacity)


def decode_volume_attachment(obj: Json) -> s.VolumeAttachment:
    """A storage.k8s.io/v1 VolumeAttachment; without a PersistentVolume it is not counted. Raises MalformedObject."""
    return decode_object("VolumeAttachment", obj, _attachment)


STORAGE_DECODERS: Mapping[str, Callable[[Json], s.StorageObject | CsiNode]] = {
    "PersistentVolume": decode_persistent_volume,
    "PersistentVolumeClaim": decode_persistent_volume_claim,
    "StorageClass": decode_storage_class,
    "CSINode": decode_csi_node,
    "CSIDriver": decode_csi_driver,
    "CSIStorageCapacity": decode_storage_capacity,
    "VolumeAttachment": decode_volume_attachment,
}
"""The decoder of each kind."""


def _volume(obj: Json) -> s.PersistentVolume:
    meta, spec = obj["metadata"], obj["spec"]
    labels = string_map(meta.get("labels"), "metadata.labels")
    annotations = string_map(meta.get("annotations"), "metadata.annotations")
    required = decode_node_selector((spec.get("nodeAffinity") or {}).get("required"))
    claim = spec.get("claimRef")
    return s.PersistentVolume(
        name=text(meta["name"]),
        uid=text(meta.get("uid") or meta["name"]),
        version=resource_version(meta),
        labels=labels,
        class_name=_class_name(annotations, spec),
        capacity_bytes=size_bytes((spec.get("capacity") or {}).get("storage", 0), "spec.capacity.storage"),
        access_modes=_modes(spec),
        is_block=_is_block(spec),
        attributes_class=text(spec.get("volumeAttributesClassName") or ""),
        node_affinity_terms=required,
        claim_ref=None if claim is None else _claim_ref(claim),
        bound_by_controller=BOUND_BY_CONTROLLER in annotations,
        # A manifest in a file may have no status: the volume is then available.
        phase=text((obj.get("status") or {}).get("phase") or ("Available" if claim is None else "Bound")),
        deleting=meta.get("deletionTimestamp") is not None,
        csi_volume=decode_volume_mount(spec, labels),
        is_csi=spec.get("csi") is not None,
        migration=decode_migration(spec, labels, required),
    )


def _claim_ref(ref: Json) -> s.ClaimRef:
    key = VolumeClaimKey(text(ref.get("namespace") or ""), text(ref.get("name") or ""))
    return s.ClaimRef(key, text(ref.get("uid") or ""))


def _claim(obj: Json) -> s.PersistentVolumeClaim:
    meta, spec = obj["metadata"], obj["spec"]
    annotations = string_map(meta.get("annotations"), "metadata.annotations")
    key = VolumeClaimKey(text(meta.get("namespace") or "default"), text(meta["name"]))
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    selected = annotations.get(SELECTED_NODE)
    owners: list[Json] = [
        reference for reference in meta.get("ownerReferences") or () if reference.get("controller")
    ]
    return s.PersistentVolumeClaim(
        key=key,
        uid=text(meta.get("uid") or f"{key.namespace}/{key.name}"),
        version=resource_version(meta),
        class_name=_class_name(annotations, spec),
        request_bytes=None if size is None else size_bytes(size, "spec.resources.requests.storage"),
        access_modes=_modes(spec),
        is_block=_is_block(spec),
        attributes_class=text(spec.get("volumeAttributesClassName") or ""),
        selector=decode_short_selector(spec.get("selector")),
        volume_name=text(spec.get("volumeName") or ""),
        bind_completed=BIND_COMPLETED in annotations,
        selected_node=None if selected is None else NodeName(selected),
        phase=text((obj.get("status") or {}).get("phase") or "Pending"),
        deleting=meta.get("deletionTimestamp") is not None,
        controller_uid=PodUid(text(owners[0]["uid"])) if owners else None,
    )


def _class_name(annotations: Mapping[str, str], spec: Json) -> str:
    """The deprecated annotation takes precedence, as in kube-scheduler."""
    return (
        annotations[_STORAGE_CLASS_ANNOTATION]
        if _STORAGE_CLASS_ANNOTATION in annotations
        else text(spec.get("storageClassName") or "")
    )


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
        waits_for_first_consumer=mode == "WaitForFirstConsumer",
        allowed_topologies=tuple(
            tuple(
                SelectorRequirement(
                    text(expression["key"]),
                    "In",
                    tuple(text(value) for value in expression.get("values") or ()),
                )
                for expression in term.get("matchLabelExpressions") or ()
            )
            for term in obj.get("allowedTopologies") or ()
        ),
    )


def _csi_node(obj: Json) -> CsiNode:
    meta = obj["metadata"]
    limits, drivers = {}, (obj.get("spec") or {}).get("drivers") or ()
    for driver in drivers:
        count = (driver.get("allocatable") or {}).get("count")
        if count is not None:
            limits[text(driver["name"])] = int(count)
    plugins = string_map(meta.get("annotations"), "metadata.annotations").get(
        _MIGRATED_PLUGINS_ANNOTATION, ""
    )
    return CsiNode(
        NodeName(text(meta["name"])),
        limits,
        frozenset(plugins.split(",") if plugins else ()),
        frozenset(text(driver["name"]) for driver in drivers),
    )


def _csi_driver(obj: Json) -> s.CsiDriver:
    spec = obj.get("spec") or {}
    return s.CsiDriver(
        text(obj["metadata"]["name"]),
        tracks_capacity=spec.get("storageCapacity") is True,
        needed_on_node=spec.get("preventPodSchedulingIfMissing") is True,
    )


def _capacity(obj: Json) -> s.StorageCapacity:
    """For the limit, `maximumVolumeSize` is preferred to `capacity`: it is more exact, but not every driver reports
    it."""
    sizes = {
        name: size_bytes(obj[name], name)
        for name in ("maximumVolumeSize", "capacity")
        if obj.get(name) is not None
    }
    limit_bytes = next(iter(sizes.values()), None)
    return s.StorageCapacity(
        namespace=text(obj["metadata"].get("namespace") or "default"),
        name=text(obj["metadata"]["name"]),
        class_name=text(obj["storageClassName"]),
        limit_bytes=limit_bytes,
        capacity_bytes=sizes.get("capacity", limit_bytes),
        topology=decode_label_selector(obj.get("nodeTopology")),
    )


def _attachment(obj: Json) -> s.VolumeAttachment:
    spec = obj["spec"]
    attacher = spec.get("attacher") or ""
    volume = (spec.get("source") or {}).get("persistentVolumeName") or ""
    return s.VolumeAttachment(
        text(obj["metadata"]["name"]), NodeName(text(spec["nodeName"])), text(attacher), text(volume)
    )
