"""`Overlay`: a hypothetical cluster, the columns with some pods added and some removed.

Gangs are tried and preemptions are simulated on an overlay; only changed nodes get totals of their
own. An overlay lives within one attempt: the caller commits it by assuming each placement in the
cache, or discards it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable

from policysched.cluster.devices.device_overlay import DeviceOverlay
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.cluster.namespace_shares import HypotheticalShares, NamespaceShares
from policysched.cluster.node_usage import NodeUsage
from policysched.cluster.volumes.reservations import VolumeChoice, VolumeReservations
from policysched.evaluate.columns.column_kinds import ColumnKind
from policysched.evaluate.columns.columns import Array, Columns
from policysched.evaluate.columns.placed_pods import HypotheticalPlacedPods
from policysched.model.identifiers import NodeName, PodUid, VolumeClaimKey
from policysched.model.nodes import Node
from policysched.model.pods import Placement, Pod


class Overlay:
    """Totals of the changed rows. Valid while the cluster does not change, or after `follow`. `log` lists changed rows in order,
    for caches that catch up. `added_pods` are the pods added and not removed again, in order; `removal_count` counts those
    removed again. `claim_use_deltas`: the change of `Columns.claim_uses`."""

    def __init__(
        self, columns: Columns, placement_of: Callable[[PodUid], Placement | None], shares: NamespaceShares
    ) -> None:
        self._columns = columns
        self.shares = HypotheticalShares(shares)
        self._placement_of = placement_of
        self._usages: dict[int, NodeUsage] = {}
        self._names: dict[int, NodeName] = {}  # by row: a node that comes back may get another one
        self._change_counts: dict[int, int] = {}  # by row: pods that differ from the columns
        self._added: dict[PodUid, tuple[Pod, NodeName]] = {}
        self.added_pods: list[tuple[Pod, NodeName]] = []
        self.removal_count = 0
        self._removed: dict[PodUid, tuple[Placement, int | None]] = {}  # and row; None: its node was gone
        self._position = self._asked_position = columns.log_end
        self.log: list[int] = []
        self._arrays: dict[ColumnKind, tuple[Hashable, int, Array]] = {}
        """By kind: the state of the columns, how much of the log is in the array, and the array."""
        self.claim_use_deltas: Counter[VolumeClaimKey] = Counter()
        self.volume_reservations = VolumeReservations()
        self.device_reservations = DeviceOverlay()
        self._devices_stamp = columns.available_devices.stamp
        self.pods = HypotheticalPlacedPods(lambda: columns.placed_pods)

    def add_pod(self, pod: Pod, node: NodeName) -> None:
        """Add a pod to a node. It must be on none; a removed pod may be added elsewhere."""
        assert pod.uid not in self._added, f"{pod.full_name} was already added to {self._added[pod.uid][1]}"
        assert self._placement_of(pod.uid) is None or pod.uid in self._removed, f"{pod.full_name} is placed"
        self._update_usage(node, pod, 1).add(pod)
        self._count_change(node, 1)
        added = self._added[pod.uid] = (pod, node)
        self.added_pods.append(added)

    def remove_pod(self, uid: PodUid) -> None:
        """Remove a pod that was added here, or that the ledger has placed, perhaps on a node that is gone."""
        added = self._added.pop(uid, None)
        if added is not None:
            pod, node = added
            self._update_usage(node, pod, -1).subtract(pod)
            self._count_change(node, -1)
            last = len(self.added_pods) - 1
            del self.added_pods[next(at for at in range(last, -1, -1) if self.added_pods[at] is added)]
            self.removal_count += 1
            return
        placement = self._placement_of(uid)
        assert placement is not None and uid not in self._removed, f"pod {uid} is on no node"
        row = self._columns.row(placement.node)
        self._removed[uid] = placement, row
        if row is not None:
            self._update_usage(placement.node, placement.pod, -1).subtract(placement.pod)
            self._count_change(placement.node, 1)

    def restore_pod(self, uid: PodUid) -> None:
        """Undo the removal of a placed pod."""
        placement = self._placement_of(uid)
        assert placement is not None and uid in self._removed, f"pod {uid} was not removed"
        del self._removed[uid]
        if self._columns.row(placement.node) is not None:
            self._update_usage(placement.node, placement.pod, 1).add(placement.pod)
            self._count_change(placement.node, -1)

    def follow(self) -> bool:
        """Apply what changed in the cluster since the last call; forget removed pods that are gone. Returns false if the overlay
        cannot be used any more: an added pod is on a node by now, a removed one changed or moved, or the node of one is gone.
        Nor can it if devices changed, and some are reserved here: those of one node may be used by several now.
        Changed nodes are read again, since a new overlay takes long."""
        columns, devices_stamp = self._columns, self._devices_stamp
        self._devices_stamp = columns.available_devices.stamp
        if self.device_reservations.allocations and self._devices_stamp != devices_stamp:
            return False
        touched, self._position = columns.touched_since(self._position), columns.log_end
        if touched is None:
            return False
        rows = touched[0] | touched[1]
        if any(columns.row(self._names[row]) != row for row in touched[0] if row in self._names):
            return False
        if any(self._placement_of(uid) is not None and uid not in self._removed for uid in self._added):
            return False
        gone: list[PodUid] = []
        for uid, (before, row) in self._removed.items():
            if row is not None and row not in rows:
                continue  # unchanged; there can be thousands
            placement = self._placement_of(uid)
            if columns.row(before.node) != row:
                return False
            if placement is None:
                gone.append(uid)
            elif placement.pod is not before.pod or placement.node != before.node:
                return False
        for uid in gone:
            before, row = self._removed.pop(uid)
            if row is not None:
                self._update_usage(before.node, before.pod, 1)
                self._count_change(before.node, -1)
        self._read_again(rows & self._usages.keys())
        self._arrays.clear()
        self.pods.follow()
        return True

    def _read_again(self, changed: Collection[int]) -> None:
        """Read again the totals of rows whose node or pods changed in the columns."""
        self._usages |= {row: _copy_usage(self._columns.usage(row)) for row in changed}
        row_of = {self._names[row]: row for row in changed}
        for placement, row in self._removed.values():
            if row is not None and row in changed:
                self._usages[row].subtract(placement.pod)
        for pod, node in self._added.values():
            if node in row_of:
                self._usages[row_of[node]].add(pod)

    def changed_nodes(self) -> set[NodeName] | None:
        """The nodes that changed in the cluster, or whose pods did, since the last call, even if the overlay cannot follow;
        without those that are gone. None: unknown."""
        columns = self._columns
        touched, self._asked_position = columns.touched_since(self._asked_position), columns.log_end
        if touched is None:
            return None
        nodes = (columns.nodes[row] for row in touched[0] | touched[1])
        return {node.name for node in nodes if node is not None}

    def may_add(self, uid: PodUid, node: NodeName) -> bool:
        """Whether `add_pod` accepts the pod, and knows the node."""
        return self._placement_of(uid) is None and self._columns.row(node) is not None

    def has_added_pod(self, uid: PodUid) -> bool:
        """Whether the pod was added here and not removed again."""
        return uid in self._added

    def row_of_added(self, uid: PodUid) -> int | None:
        """The row of a pod that was added here; None: it was not."""
        added = self._added.get(uid)
        return None if added is None else self._columns.row(added[1])

    def reserve_volumes(self, uid: PodUid, choice: VolumeChoice, node: NodeName) -> None:
        """Reserve volumes for the pod on this overlay."""
        self.volume_reservations.add(uid, choice, node)

    def reserve_devices(self, choice: DeviceChoice) -> None:
        """Reserve devices on this overlay."""
        reservations, before = self.device_reservations, self.device_reservations.change_count
        self._columns.available_devices.add_to_overlay(reservations, choice)
        for name in sorted(filter(None, reservations.changes_since(before))):
            if (row := self._columns.row(name)) is not None:
                self.log.append(row)

    def still_has(self, choice: DeviceChoice, node: Node, *, same_slices: bool) -> bool:
        """Whether devices that were chosen for claims are free, in the cluster and here. `same_slices`: since they were."""
        available = self._columns.available_devices.with_overlay(self.device_reservations)
        return available.still_has(choice, node, same_slices=same_slices)

    @property
    def usages(self) -> dict[int, NodeUsage]:
        """Totals of the rows that differ from the columns. Read-only."""
        return self._usages

    def array(self, kind: ColumnKind) -> Array:
        """The whole column with the changed rows. A later call reads only the rows that changed meanwhile; an array that was
        returned does not change."""
        columns, state = self._columns, (self._columns.log_end, self._columns.codes_version)
        known, position, array = self._arrays.get(kind, (None, 0, None))
        rows: Collection[int] = set(self.log[position:])
        if array is None or known != state:
            rows, array = self._usages, columns.array(kind)
        if rows:
            base, array, usages = columns.array(kind), array.copy(), self._usages
            for row in rows:
                node, usage = columns.nodes[row], usages.get(row)
                assert node is not None, f"row {row} has an overlay and no node"
                array[row] = base[row] if usage is None else kind.read(node, usage, columns.codes)
        self._arrays[kind] = state, len(self.log), array
        return array

    @property
    def removed_pods(self) -> tuple[Pod, ...]:
        """Placed pods that the overlay removed."""
        placements = [self._placement_of(uid) for uid in sorted(self._removed)]
        return tuple([placement.pod for placement in placements if placement is not None])

    @property
    def placements(self) -> tuple[tuple[Pod, NodeName], ...]:
        """The pods to assume on a commit, in order."""
        return tuple(self.added_pods)

    def _update_usage(self, node: NodeName, pod: Pod, delta: int) -> NodeUsage:
        row = self._columns.row(node)
        assert row is not None, f"node {node} is not known"
        self.log.append(row)
        self.pods.adjust(row, pod, delta)
        self.shares.adjust_requested(pod.namespace, pod.requests, delta)
        for use in pod.claims:
            self.claim_use_deltas[use.claim] += delta
        usage = self._usages.get(row)
        if usage is None:
            usage = self._usages[row] = _copy_usage(self._columns.usage(row))
            self._names[row] = node
        return usage

    def _count_change(self, node: NodeName, delta: int) -> None:
        """Drop the totals of a row whose changes cancel out, so that few rows differ."""
        row = self._columns.row(node)
        assert row is not None, f"node {node} is not known"
        count = self._change_counts.get(row, 0) + delta
        if count:
            self._change_counts[row] = count
        else:
            del self._change_counts[row]
            del self._usages[row], self._names[row]


def _copy_usage(usage: NodeUsage) -> NodeUsage:
    return NodeUsage(
        dict(usage.requested),
        usage.scoring_cpu_milli,
        usage.scoring_memory_bytes,
        usage.ports.copy(),
        usage.disks.copy(),
        dict(usage.pods),
    )
