"""`AttachedVolumes`: attached volumes per CSI driver by row, and the rows with a given volume.

Counted once for all rows, and again for rows whose pods, attachments or volumes changed. A volume
is attached through a claim of a pod on the row, as an inline volume of a pod, or by a
VolumeAttachment, which counts only where no pod of the row has the volume.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import is_
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from policysched.cluster.node_usage import NodeUsage
from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.volume_cache import VolumeCache
from policysched.model.identifiers import VolumeClaimKey
from policysched.model.nodes import Node
from policysched.model.pods import Pod, PodVolumeClaim
from policysched.model.storage import CsiAttachment, CsiVolume

Numbers = NDArray[np.int64]
Key = TypeVar("Key")

_NO_ROWS: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeAttachedVolumes:
    """The volumes attached to one node: `pod_mounts` by its pods, `counts` of all by driver. Derived
    from `claims` (an ephemeral volume is also there with its pod) and `volumes` (names)."""

    pod_mounts: frozenset[CsiVolume]
    counts: Mapping[str, int]
    claims: frozenset[VolumeClaimKey | PodVolumeClaim]
    volumes: frozenset[str]


NO_ATTACHED_VOLUMES = NodeAttachedVolumes(frozenset(), {}, frozenset(), frozenset())


def attached_to(node: Node, pods: Iterable[Pod], available: AvailableVolumes) -> NodeAttachedVolumes:
    uses = set[PodVolumeClaim]()
    pod_mounts = set[CsiVolume]()
    for pod in pods:
        uses.update(pod.claims)
        pod_mounts.update(pod.mounts)
    if not (uses or pod_mounts or node.attachments):
        return NO_ATTACHED_VOLUMES
    names = {attachment.volume for attachment in node.attachments}
    for use in uses:
        claim = available.claim(use.claim)
        if claim is not None:
            if claim.volume_name:
                names.add(claim.volume_name)
            mount = available.csi_volume(claim) if use.owner_pod in (None, claim.controller_uid) else None
            if mount is not None:
                pod_mounts.add(mount)
    counts = Counter(mount.driver for mount in pod_mounts)
    for mount in {mount_of_attachment(attachment, available) for attachment in node.attachments} - {None}:
        assert mount is not None, "removed above"
        counts[mount.driver] += mount not in pod_mounts
    claims = {use.claim for use in uses} | {use for use in uses if use.owner_pod is not None}
    return NodeAttachedVolumes(frozenset(pod_mounts), counts, frozenset(claims), frozenset(names))


def mount_of_attachment(attachment: CsiAttachment, available: AvailableVolumes) -> CsiVolume | None:
    """The volume of a VolumeAttachment; None unless a CSI driver attaches it."""
    volume = available.volume(attachment.volume)
    if volume is None or volume.csi_volume is None or not volume.is_csi:
        return None
    return CsiVolume(attachment.attacher, volume.csi_volume.handle)


class AttachedVolumes:
    """Counts by row. The owner calls `update_row` for each row that changed; `catch_up` applies changes of volumes."""

    def __init__(
        self,
        volumes: VolumeCache,
        capacity: int,
        node_and_pods: Callable[[int], tuple[Node | None, NodeUsage]],
    ) -> None:
        self._volumes = volumes
        self._node_and_pods = node_and_pods
        self._capacity = capacity
        self._counts: dict[str, Numbers] = {}
        self._rows: dict[int, NodeAttachedVolumes] = {}
        self._counted: dict[
            int, tuple[frozenset[CsiAttachment], list[Pod]]
        ] = {}  # what a row was counted from
        self._rows_by_mount: dict[CsiVolume, set[int]] = {}
        self._rows_by_claim: dict[VolumeClaimKey | PodVolumeClaim, set[int]] = {}
        self._rows_by_volume: dict[str, set[int]] = {}
        self._position = volumes.csi_volume_changes.version

    def counts(self, driver: str) -> Numbers:
        """int64 by row."""
        counts = self._counts.get(driver)
        return np.zeros(self._capacity, np.int64) if counts is None else counts

    def rows_with_mount(self, mount: CsiVolume) -> Collection[int]:
        """The rows on which a pod has the volume attached."""
        return self._rows_by_mount.get(mount, _NO_ROWS)

    def update_row(self, row: int) -> None:
        """Recount the row if other pods with volumes are on it, or other volumes are attached to the node."""
        node, usage = self._node_and_pods(row)
        pods = [pod for pod in usage.pods.values() if pod.claims or pod.mounts]
        counted = self._counted.get(row)
        if (
            counted is not None
            and node is not None
            and counted[0] == node.attachments
            and len(counted[1]) == len(pods)
            and all(map(is_, counted[1], pods))
        ):
            return
        if node is None or not (pods or node.attachments):
            self._counted.pop(row, None)
        else:
            self._counted[row] = node.attachments, pods
        self._recount(row, node, pods)

    def _recount(self, row: int, node: Node | None, pods: Iterable[Pod]) -> None:
        available = AvailableVolumes(self._volumes)
        after = NO_ATTACHED_VOLUMES if node is None else attached_to(node, pods, available)
        before = self._rows.get(row, NO_ATTACHED_VOLUMES)
        if after == before:
            return
        for driver in before.counts.keys() | after.counts.keys():
            column = self._counts.get(driver)
            if column is None:
                column = self._counts[driver] = np.zeros(self._capacity, np.int64)
            column[row] = after.counts.get(driver, 0)
        _update_index(self._rows_by_mount, row, before.pod_mounts, after.pod_mounts)
        _update_index(self._rows_by_claim, row, before.claims, after.claims)
        _update_index(self._rows_by_volume, row, before.volumes, after.volumes)
        if after is NO_ATTACHED_VOLUMES:
            del self._rows[row]
        else:
            self._rows[row] = after

    def catch_up(self) -> None:
        """Recount the rows whose claims or attachments may refer to other volumes now."""
        log = self._volumes.csi_volume_changes
        if self._position == log.version:
            return
        changes, self._position = log.since(self._position), log.version
        if changes is None or None in changes:
            rows = set(self._rows)
        else:
            rows = set()
            for key in changes:
                if isinstance(key, VolumeClaimKey | PodVolumeClaim):
                    rows |= self._rows_by_claim.get(key, _NO_ROWS)
                elif key is not None:
                    rows |= self._rows_by_volume.get(key, _NO_ROWS)
        for row in rows:
            node, usage = self._node_and_pods(row)
            self._recount(row, node, usage.pods.values())

    def grow(self, capacity: int) -> None:
        added = capacity - self._capacity
        self._capacity = capacity
        for driver, column in self._counts.items():
            self._counts[driver] = np.concatenate([column, np.zeros(added, np.int64)])


def _update_index(
    index: dict[Key, set[int]], row: int, before: frozenset[Key], after: frozenset[Key]
) -> None:
    for key in before - after:
        rows = index[key]
        rows.remove(row)
        if not rows:
            del index[key]
    for key in after - before:
        index.setdefault(key, set()).add(row)
