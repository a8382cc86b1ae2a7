"""Decodes the volumes of a pod that restrict its nodes."""

from collections.abc import Iterable, Mapping
from typing import Any

from policysched.kube.decode.in_tree_volumes import decode_inline_mount
from policysched.kube.decode.primitives import text
from policysched.model.identifiers import PodUid, VolumeClaimKey
from policysched.model.pods import PodVolumeClaim
from policysched.model.storage import CsiVolume, Disk

Json = Mapping[str, Any]


def decode_claim_uses(
    volumes: Iterable[Json], namespace: str, pod_name: str, uid: PodUid
) -> tuple[PodVolumeClaim, ...]:
    """The volume claims of a pod. The claim of a generic ephemeral volume is named `POD-VOLUME` and owned by the pod."""
    found = []
    for volume in volumes:
        if volume.get("persistentVolumeClaim") is not None:
            name = text(volume["persistentVolumeClaim"].get("claimName") or "")
            found.append(PodVolumeClaim(VolumeClaimKey(namespace, name), None))
        elif volume.get("ephemeral") is not None:
            found.append(PodVolumeClaim(VolumeClaimKey(namespace, f"{pod_name}-{text(volume['name'])}"), uid))
    return tuple(found)


def decode_mounts(volumes: Iterable[Json]) -> tuple[CsiVolume, ...]:
    return tuple(found for volume in volumes if (found := decode_inline_mount(volume)) is not None)


def decode_disks(volumes: Iterable[Json]) -> tuple[Disk, ...]:
    """Disks that two pods can mount at once only under conditions, or never."""
    return tuple(found for volume in volumes for found in _disks(volume))


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
        monitors = frozenset(text(one) for one in rbd.get("monitors") or ())
        yield Disk("rbd", name, monitors, read_only=bool(rbd.get("readOnly")))


def _disk(kind: Any, source: Json, name: str) -> Disk:
    return Disk(kind, name, frozenset(), read_only=bool(source.get("readOnly")))
