"""How many volumes of each CSI driver are attached to each row, and which rows have a given volume attached by a pod.

Counted once for all rows, and from then on again for the rows whose pods, attachments or volumes changed: a pod costs a vector
for each driver of its volumes. Volumes are attached by the pods on the row, through their claims or by themselves, and by
VolumeAttachments that say so; the latter count only where no pod of the row has the volume.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from policysched.cluster.usage import NodeUsage
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
    """What is attached to one node: by the volumes of its pods, and how many of each driver in all. `claims` and `volumes`
    (names) are what that rests on."""

    pod_mounts: frozenset[CsiVolume]
    counts: Mapping[str, int]
    claims: frozenset[VolumeClaimKey]
    volumes: frozenset[str]


NO_ATTACHED_VOLUMES = NodeAttachedVolumes(frozenset(), {}, frozenset(), frozenset())


def attached_to(node: Node, pods: Iterable[Pod], stock: AvailableVolumes) -> NodeAttachedVolumes:
    uses = set[PodVolumeClaim]()
    of_pods = set[CsiVolume]()
    for pod in pods:
        uses.update(pod.claims)
        of_pods.update(pod.mounts)
    if not (uses or of_pods or node.attachments):
        return NO_ATTACHED_VOLUMES
    names = {one.volume for one in node.attachments}
    for use in uses:
        claim = stock.claim(use.claim)
        if claim is not None:
            if claim.volume_name:
                names.add(claim.volume_name)
            mount = stock.csi_volume(claim) if use.owner_pod in (None, claim.controller_uid) else None
            if mount is not None:
                of_pods.add(mount)
    counts = Counter(mount.driver for mount in of_pods)
    for told in {found for one in node.attachments if (found := mount_of_attachment(one, stock)) is not None}:
        counts[told.driver] += told not in of_pods
    return NodeAttachedVolumes(
        frozenset(of_pods), counts, frozenset(use.claim for use in uses), frozenset(names)
    )


def mount_of_attachment(one: CsiAttachment, stock: AvailableVolumes) -> CsiVolume | None:
    """The volume that a VolumeAttachment is about; None where it is none of a CSI driver."""
    volume = stock.volume(one.volume)
    if volume is None or volume.csi_volume is None or not volume.is_csi:
        return None
    return CsiVolume(one.attacher, volume.csi_volume.handle)


class AttachedVolumes:
    """`node_and_pods(row)` is how the rows stand; `update_row` is told of each that changed, `catch_up` sees to the volumes."""

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
        self._rows_by_mount: dict[CsiVolume, set[int]] = {}
        self._rows_by_claim: dict[VolumeClaimKey, set[int]] = {}
        self._rows_by_volume: dict[str, set[int]] = {}
        self._position = volumes.csi_volume_changes.version

    def counts(self, driver: str) -> Numbers:
        """int64 by row."""
        found = self._counts.get(driver)
        return np.zeros(self._capacity, np.int64) if found is None else found

    def rows_with_mount(self, mount: CsiVolume) -> Collection[int]:
        """The rows on which a pod has the volume attached."""
        return self._rows_by_mount.get(mount, _NO_ROWS)

    def update_row(self, row: int) -> None:
        node, usage = self._node_and_pods(row)
        stock = AvailableVolumes(self._volumes)
        after = NO_ATTACHED_VOLUMES if node is None else attached_to(node, usage.pods.values(), stock)
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
        """Count the rows again behind whose claims or attachments there may be other volumes now."""
        log = self._volumes.csi_volume_changes
        if self._position == log.version:
            return
        changes, self._position = log.since(self._position), log.version
        if changes is None or None in changes:
            rows = set(self._rows)
        else:
            rows = set()
            for one in changes:
                if isinstance(one, VolumeClaimKey):
                    rows |= self._rows_by_claim.get(one, _NO_ROWS)
                elif one is not None:
                    rows |= self._rows_by_volume.get(one, _NO_ROWS)
        for row in rows:
            self.update_row(row)

    def grow(self, capacity: int) -> None:
        more = capacity - self._capacity
        self._capacity = capacity
        for driver, column in self._counts.items():
            self._counts[driver] = np.concatenate([column, np.zeros(more, np.int64)])


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
