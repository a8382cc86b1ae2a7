"""`AttachedVolumes`: attached volumes per CSI driver by row, and the rows with a given volume.

Counted once for all rows, and then updated with the pods, attachments and volumes of each row: the
cost of a pod depends on its own volumes, not on those of others on the node. A volume is attached
through a claim of a pod on the row, as an inline volume of a pod, or by a VolumeAttachment, which
counts only where no pod of the row has the volume.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
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
Item = TypeVar("Item")

_NO_ROWS: frozenset[int] = frozenset()
_NO_ATTACHMENTS: frozenset[CsiAttachment] = frozenset()


@dataclass(slots=True)
class _Row:
    """What one node was counted from. `uses`: how many volumes of pods use a claim; `csi_volumes`: those of the uses that
    have one; `sources`: by volume, how many inline volumes and uses have it; `attached`: by VolumeAttachments."""

    pods: list[Pod] = field(default_factory=list)
    attachments: frozenset[CsiAttachment] = _NO_ATTACHMENTS
    uses: dict[PodVolumeClaim, int] = field(default_factory=dict)
    csi_volumes: dict[PodVolumeClaim, CsiVolume] = field(default_factory=dict)
    sources: dict[CsiVolume, int] = field(default_factory=dict)
    attached: frozenset[CsiVolume] = frozenset()


def csi_volume_of_use(use: PodVolumeClaim, available: AvailableVolumes) -> CsiVolume | None:
    """The volume that is attached for a pod's use of a claim, if any."""
    claim = available.claim(use.claim)
    if claim is None or use.owner_pod not in (None, claim.controller_uid):
        return None
    return available.csi_volume(claim)


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
        self._available = AvailableVolumes(volumes)
        self._node_and_pods = node_and_pods
        self._capacity = capacity
        self._counts: dict[str, Numbers] = {}
        self._rows: dict[int, _Row] = {}
        self._rows_by_mount: dict[CsiVolume, set[int]] = {}
        self._rows_by_use: dict[PodVolumeClaim, set[int]] = {}
        self._rows_by_attached: dict[str, set[int]] = {}
        # Of the claims that are used on some row: as ephemeral volumes, and by the names of their volumes.
        self._owned_uses: dict[VolumeClaimKey, set[PodVolumeClaim]] = {}
        self._volume_of_claim: dict[VolumeClaimKey, str] = {}
        self._claims_by_volume: dict[str, set[VolumeClaimKey]] = {}
        self._position = volumes.csi_volume_changes.version

    # ── reading ────────────────────────────────────────────────────────────────────────────────────────────────────

    def counts(self, driver: str) -> Numbers:
        """int64 by row."""
        counts = self._counts.get(driver)
        return np.zeros(self._capacity, np.int64) if counts is None else counts

    def rows_with_mount(self, mount: CsiVolume) -> Collection[int]:
        """The rows on which a pod has the volume attached."""
        return self._rows_by_mount.get(mount, _NO_ROWS)

    def with_pods(
        self, row: int, pods: Iterable[Pod], driver: str, own_volumes: Iterable[CsiVolume]
    ) -> tuple[int, int]:
        """The count of the driver if these were the pods of the row, and how many of `own_volumes` none of them had."""
        state = self._rows.get(row) or _Row()
        removed, added = _difference(state.pods, [pod for pod in pods if pod.claims or pod.mounts])
        changes, uses = Counter[CsiVolume](), Counter[PodVolumeClaim]()
        for changed, delta in ((removed, -1), (added, 1)):
            for pod in changed:
                for mount in pod.mounts:
                    changes[mount] += delta
                for use in pod.claims:
                    uses[use] += delta
        for use, delta in uses.items():
            before, csi_volume = state.uses.get(use, 0), csi_volume_of_use(use, self._available)
            if csi_volume is not None:
                changes[csi_volume] += (before + delta > 0) - (before > 0)
        count = int(self.counts(driver)[row])
        for mount, delta in changes.items():
            if mount.driver == driver and mount not in state.attached:
                before = state.sources.get(mount, 0)
                count += (before + delta > 0) - (before > 0)
        return count, sum(not state.sources.get(mount, 0) + changes[mount] for mount in own_volumes)

    # ── pods and attachments ───────────────────────────────────────────────────────────────────────────────────────

    def update_row(self, row: int) -> None:
        """Call when the pods of the row, or the volumes attached to its node, have changed."""
        node, usage = self._node_and_pods(row)
        pods = [] if node is None else [pod for pod in usage.pods.values() if pod.claims or pod.mounts]
        attachments = _NO_ATTACHMENTS if node is None else node.attachments
        state = self._rows.get(row)
        if state is None:
            if not pods and not attachments:
                return
            state = self._rows[row] = _Row()
        if len(state.pods) != len(pods) or not all(map(is_, state.pods, pods)):
            removed, added = _difference(state.pods, pods)
            for pod in added:
                self._count_pod(row, state, pod, 1)
            for pod in removed:
                self._count_pod(row, state, pod, -1)
            state.pods = pods
        if state.attachments != attachments:
            before = {attachment.volume for attachment in state.attachments}
            after = {attachment.volume for attachment in attachments}
            state.attachments = attachments
            for name in before - after:
                _discard(self._rows_by_attached, name, row)
            for name in after - before:
                self._rows_by_attached.setdefault(name, set()).add(row)
            self._count_attachments(row, state)
        if not pods and not attachments:
            del self._rows[row]

    def _count_pod(self, row: int, state: _Row, pod: Pod, delta: int) -> None:
        for mount in pod.mounts:
            self._count_source(row, state, mount, delta)
        for use in pod.claims:
            count = state.uses.get(use, 0) + delta
            if count:
                state.uses[use] = count
                if count == delta:
                    self._add_use(row, state, use)
            else:
                self._remove_use(row, state, use)

    def _add_use(self, row: int, state: _Row, use: PodVolumeClaim) -> None:
        rows = self._rows_by_use.get(use)
        if rows is None:
            rows = self._rows_by_use[use] = set()
            if use.owner_pod is not None:
                self._owned_uses.setdefault(use.claim, set()).add(use)
            self._learn_volume(use.claim)
        rows.add(row)
        self._follow_use(row, state, use)

    def _remove_use(self, row: int, state: _Row, use: PodVolumeClaim) -> None:
        del state.uses[use]
        csi_volume = state.csi_volumes.pop(use, None)
        if csi_volume is not None:
            self._count_source(row, state, csi_volume, -1)
        _discard(self._rows_by_use, use, row)
        if use not in self._rows_by_use:
            if use.owner_pod is not None:
                _discard(self._owned_uses, use.claim, use)
            self._learn_volume(use.claim)

    def _count_source(self, row: int, state: _Row, mount: CsiVolume, delta: int) -> None:
        before = state.sources.get(mount, 0)
        if before + delta:
            state.sources[mount] = before + delta
        else:
            del state.sources[mount]
        if before and before + delta:
            return
        if delta > 0:
            self._rows_by_mount.setdefault(mount, set()).add(row)
        else:
            _discard(self._rows_by_mount, mount, row)
        if mount not in state.attached:
            self._column(mount.driver)[row] += delta

    def _count_attachments(self, row: int, state: _Row) -> None:
        mounts = {mount_of_attachment(attachment, self._available) for attachment in state.attachments}
        before, after = state.attached, frozenset(mount for mount in mounts if mount is not None)
        state.attached = after
        for mount in before ^ after:
            if mount not in state.sources:
                self._column(mount.driver)[row] += 1 if mount in after else -1

    def _column(self, driver: str) -> Numbers:
        column = self._counts.get(driver)
        if column is None:
            column = self._counts[driver] = np.zeros(self._capacity, np.int64)
        return column

    # ── volumes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def catch_up(self) -> None:
        """Follow claims, attachments and uses that may refer to other volumes now."""
        log = self._volumes.csi_volume_changes
        if self._position == log.version:
            return
        changes, self._position = log.since(self._position), log.version
        if changes is None or None in changes:
            changes = [*self._rows_by_use, *self._rows_by_attached]
        for key in changes:
            if isinstance(key, VolumeClaimKey):
                self._follow_claim(key)
            elif isinstance(key, PodVolumeClaim):
                self._learn_volume(key.claim)
                self._follow_rows(key)
            elif key is not None:
                for claim in tuple(self._claims_by_volume.get(key, ())):
                    self._follow_claim(claim)
                for row in self._rows_by_attached.get(key, _NO_ROWS):
                    self._count_attachments(row, self._rows[row])

    def _follow_claim(self, claim: VolumeClaimKey) -> None:
        self._learn_volume(claim)
        for use in self._uses_of(claim):
            self._follow_rows(use)

    def _follow_rows(self, use: PodVolumeClaim) -> None:
        for row in self._rows_by_use.get(use, _NO_ROWS):
            self._follow_use(row, self._rows[row], use)

    def _uses_of(self, claim: VolumeClaimKey) -> tuple[PodVolumeClaim, ...]:
        return PodVolumeClaim(claim, None), *self._owned_uses.get(claim, ())

    def _follow_use(self, row: int, state: _Row, use: PodVolumeClaim) -> None:
        before, after = state.csi_volumes.get(use), csi_volume_of_use(use, self._available)
        if before == after:
            return
        if after is not None:
            state.csi_volumes[use] = after
            self._count_source(row, state, after, 1)
        if before is not None:
            self._count_source(row, state, before, -1)
            if after is None:
                del state.csi_volumes[use]

    def _learn_volume(self, key: VolumeClaimKey) -> None:
        """Record the name of the volume of a claim that is used on some row; forget that of another."""
        is_used = key in self._owned_uses or PodVolumeClaim(key, None) in self._rows_by_use
        claim = self._available.claim(key) if is_used else None
        before, after = self._volume_of_claim.get(key, ""), claim.volume_name if claim is not None else ""
        if before == after:
            return
        if before:
            del self._volume_of_claim[key]
            _discard(self._claims_by_volume, before, key)
        if after:
            self._volume_of_claim[key] = after
            self._claims_by_volume.setdefault(after, set()).add(key)

    def grow(self, capacity: int) -> None:
        added = capacity - self._capacity
        self._capacity = capacity
        for driver, column in self._counts.items():
            self._counts[driver] = np.concatenate([column, np.zeros(added, np.int64)])


def _difference(before: list[Pod], after: list[Pod]) -> tuple[list[Pod], list[Pod]]:
    """The pods that are removed and added. Two with the same volume objects cancel out: a pod keeps these when its labels
    change."""
    wanted = Counter(map(_volumes_id, after))
    removed, added = list[Pod](), list[Pod]()
    for pod in before:
        if wanted[_volumes_id(pod)]:
            wanted[_volumes_id(pod)] -= 1
        else:
            removed.append(pod)
    for pod in after:
        if wanted[_volumes_id(pod)]:
            wanted[_volumes_id(pod)] -= 1
            added.append(pod)
    return removed, added


def _volumes_id(pod: Pod) -> tuple[int, int]:
    return id(pod.claims), id(pod.mounts)


def _discard(index: dict[Key, set[Item]], key: Key, item: Item) -> None:
    items = index[key]
    items.remove(item)
    if not items:
        del index[key]
