"""Decodes volumes: a pod's claims, disks and mounts, and in-tree volumes as the CSI volumes they were migrated to.

Source of the migration: k8s.io/csi-translation-lib v0.36 (`plugins`). Azure Files and vSphere are migrated too, but
kube-scheduler counts them towards no limit, so they are not mounts here.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from policysched.cluster.volumes.availability import CSI_DRIVER_OF
from policysched.kube.decode.primitives import text
from policysched.model.identifiers import PodUid, VolumeClaimKey
from policysched.model.pods import PodVolumeClaim
from policysched.model.selectors import NodeSelectorTerm, SelectorRequirement
from policysched.model.storage import CsiMigration, CsiVolume, Disk, NodeSelectorTerms
from policysched.model.volume_topology import OLD_REGION, OLD_ZONE, REGION, ZONE, ZONE_SEPARATOR
from policysched.text.short_text_cache import SHORT_TEXT_MAX

Json = Mapping[str, Any]

_UNSPECIFIED = "UNSPECIFIED"
_EBS_ID = re.compile(r"vol-[^/]*\Z")


@dataclass(frozen=True, slots=True)
class _Plugin:
    """`source` is the plugin's field in a volume, `topology` the driver's key for a zone."""

    name: str
    source: str
    topology: str | None


_PLUGINS = (
    _Plugin("kubernetes.io/aws-ebs", "awsElasticBlockStore", "topology.ebs.csi.aws.com/zone"),
    _Plugin("kubernetes.io/azure-disk", "azureDisk", None),
    _Plugin("kubernetes.io/cinder", "cinder", "topology.cinder.csi.openstack.org/zone"),
    _Plugin("kubernetes.io/gce-pd", "gcePersistentDisk", "topology.gke.io/zone"),
    _Plugin("kubernetes.io/portworx-volume", "portworxVolume", None),
)


# ── volumes of a pod ───────────────────────────────────────────────────────────────────────────────────────────────


def decode_claim_uses(
    volumes: Iterable[Json], namespace: str, pod_name: str, uid: PodUid
) -> tuple[PodVolumeClaim, ...]:
    """The volume claims of a pod. The claim of a generic ephemeral volume is named `POD-VOLUME` and owned by the pod."""
    claims = []
    for volume in volumes:
        if volume.get("persistentVolumeClaim") is not None:
            name = text(volume["persistentVolumeClaim"].get("claimName") or "")
            claims.append(PodVolumeClaim(VolumeClaimKey(namespace, name), None))
        elif volume.get("ephemeral") is not None:
            claims.append(
                PodVolumeClaim(VolumeClaimKey(namespace, f"{pod_name}-{text(volume['name'])}"), uid)
            )
    return tuple(claims)


def decode_mounts(volumes: Iterable[Json]) -> tuple[CsiVolume, ...]:
    return tuple(mount for volume in volumes if (mount := decode_inline_mount(volume)) is not None)


def decode_disks(volumes: Iterable[Json]) -> tuple[Disk, ...]:
    """Disks that two pods can mount at once only under conditions, or never."""
    return tuple(disk for volume in volumes for disk in _disks(volume))


def _disks(volume: Json) -> Iterable[Disk]:
    gce, aws = volume.get("gcePersistentDisk"), volume.get("awsElasticBlockStore")
    iscsi, rbd = volume.get("iscsi"), volume.get("rbd")
    if gce is not None:
        yield _disk("gcePersistentDisk", gce, text(gce["pdName"]))
    if aws is not None:
        # Never shared, not even read-only.
        yield Disk("awsElasticBlockStore", text(aws["volumeID"]), frozenset(), read_only=False)
    if iscsi is not None:
        yield _disk("iscsi", iscsi, text(iscsi["iqn"]))
    if rbd is not None:
        name = f"{rbd.get('pool') or 'rbd'}/{text(rbd['image'])}"
        monitors = frozenset(text(monitor) for monitor in rbd.get("monitors") or ())
        yield Disk("rbd", name, monitors, read_only=bool(rbd.get("readOnly")))


def _disk(kind: Any, source: Json, name: str) -> Disk:
    return Disk(kind, name, frozenset(), read_only=bool(source.get("readOnly")))


# ── in-tree volumes ────────────────────────────────────────────────────────────────────────────────────────────────


def decode_inline_mount(volume: Json) -> CsiVolume | None:
    """The CSI volume of a pod's in-tree volume; None for other kinds and for invalid volumes."""
    plugin = _plugin_of(volume)
    return None if plugin is None else _mount(plugin, _handle(plugin, volume[plugin.source], {}))


def decode_volume_mount(spec: Json, labels: Mapping[str, str]) -> CsiVolume | None:
    """The CSI volume of a PersistentVolume, from `csi` or an in-tree plugin."""
    csi = spec.get("csi")
    if csi is not None:
        driver, handle = csi.get("driver"), csi.get("volumeHandle")
        return CsiVolume(str(driver), str(handle)) if driver and handle else None
    plugin = _plugin_of(spec)
    return None if plugin is None else _mount(plugin, _handle(plugin, spec[plugin.source], labels))


def decode_migration(
    spec: Json, labels: Mapping[str, str], required: NodeSelectorTerms | None
) -> CsiMigration | None:
    """A PersistentVolume's node affinity on nodes whose kubelet has migrated its plugin to the driver."""
    plugin = _plugin_of(spec)
    if plugin is None or spec.get("csi") is not None:
        return None
    return CsiMigration(
        plugin.name,
        required if plugin.topology is None else _translate_zone_terms(required, labels, plugin.topology),
    )


def _plugin_of(fields: Json) -> _Plugin | None:
    return next((plugin for plugin in _PLUGINS if fields.get(plugin.source) is not None), None)


def _mount(plugin: _Plugin, handle: str | None) -> CsiVolume | None:
    return CsiVolume(CSI_DRIVER_OF[plugin.name], handle) if handle else None


def _handle(plugin: _Plugin, source: Json, labels: Mapping[str, str]) -> str | None:
    match plugin.source:
        case "awsElasticBlockStore":
            return _ebs_handle(str(source.get("volumeID") or ""))
        case "azureDisk":
            managed = str(source.get("kind") or "Managed").lower() == "managed"
            return str(source.get("diskURI") or "") if managed else None
        case "gcePersistentDisk":
            return _gce_handle(str(source.get("pdName") or ""), labels)
        case _:
            return str(source.get("volumeID") or "")


def _ebs_handle(volume_id: str) -> str | None:
    """`aws://zone/vol-1` and `vol-1` are one volume. None: it is no URL, as `aws://[`, or longer than any: Python keeps the latest
    128 texts that it has split."""
    if not volume_id.startswith("aws://"):
        return volume_id
    if len(volume_id) > SHORT_TEXT_MAX:
        return None
    try:
        volume = urlsplit(volume_id).path.strip("/")
    except ValueError:
        return None
    return volume if _EBS_ID.match(volume) else None


def _gce_handle(disk: str, labels: Mapping[str, str]) -> str | None:
    zones = (labels.get(OLD_ZONE) or labels.get(ZONE) or "").split(ZONE_SEPARATOR)
    if len(zones) == 1:
        return f"projects/{_UNSPECIFIED}/zones/{zones[0] or _UNSPECIFIED}/disks/{disk}"
    regions = {zone.rpartition("-")[0] for zone in zones}
    if len(regions) != 1 or any(len(zone.split("-")) != 3 for zone in zones):
        return None
    return f"projects/{_UNSPECIFIED}/regions/{regions.pop()}/disks/{disk}"


def _translate_zone_terms(
    required: NodeSelectorTerms | None, labels: Mapping[str, str], topology: str
) -> NodeSelectorTerms | None:
    """Replace the zone label by the driver's key; if the affinity names no zone, add the zones of the volume's label."""
    zone, old_region = _zone_label(required, labels)
    keys = {expression.key for term in required or () for expression in term.expressions if expression.values}
    if zone in keys:
        required = _rename_key(required, zone, topology)
    elif zone in labels:
        zones = tuple(sorted({name.strip() for name in labels[zone].split(ZONE_SEPARATOR) if name.strip()}))
        if zones:
            zone_requirement = SelectorRequirement(topology, "In", zones)
            terms = required or (NodeSelectorTerm((), ()),)
            required = tuple(
                replace(term, expressions=(*term.expressions, zone_requirement)) for term in terms
            )
    return _rename_key(required, OLD_REGION, REGION) if old_region else required


def _zone_label(required: NodeSelectorTerms | None, labels: Mapping[str, str]) -> tuple[str, bool]:
    """The zone label in use (current or deprecated), and whether the region label is deprecated."""
    keys = {expression.key for term in required or () for expression in term.expressions}
    for names in (keys, labels):
        if ZONE in names:
            return ZONE, False
        if OLD_ZONE in names:
            return OLD_ZONE, True
    return ZONE, False


def _rename_key(required: NodeSelectorTerms | None, old: str, new: str) -> NodeSelectorTerms | None:
    if required is None:
        return None
    return tuple(
        replace(
            term,
            expressions=tuple(
                replace(expression, key=new) if expression.key == old else expression
                for expression in term.expressions
            ),
        )
        for term in required
    )
