"""`Columns`: the nodes as NumPy arrays, one set for all policies, refreshed row by row.

A node keeps its row for its lifetime; rows of deleted nodes are reused. A column is built when a
plan or a pod first needs it. Caches of results (`evaluate.evaluation`) read the log of changed rows
and recompute only those.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b
from heapq import nsmallest
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysched.cluster.cache import ClusterCache
from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.node_usage import NodeUsage
from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.binder import pod_volume_claims
from policysched.evaluate.columns.attached_volumes import AttachedVolumes
from policysched.evaluate.columns.column_kinds import ColumnKind
from policysched.evaluate.columns.constant_columns import ConstantColumns, absent_value
from policysched.evaluate.columns.device_rejections import DeviceRejectionCache
from policysched.evaluate.columns.free_volume_index import FreeVolumeIndexCache
from policysched.evaluate.columns.gang_members import GangMembers, GangMemberSpec
from policysched.evaluate.columns.not_counted import NotCounted
from policysched.evaluate.columns.placed_pod_counts import ITEMS_PER_STEP, PlacedPodCounts
from policysched.evaluate.columns.placed_pod_totals import PODS_PER_STEP
from policysched.evaluate.columns.placed_pods import PlacedPods
from policysched.evaluate.columns.shared_interners import Interners
from policysched.evaluate.columns.storage_capacity import StorageCapacityCache
from policysched.model.identifiers import NodeName, PodUid, VolumeClaimKey
from policysched.model.nodes import Node
from policysched.model.pods import Pod

Array = NDArray[Any]

_FIRST_CAPACITY = 64
_POD_COLUMNS_MAX = 256  # columns that only pods need: images, keys of selectors, rare resources
_ROWS_PER_STEP = 1024
NODES_PER_STEP = 128
"""To read all columns of so many new nodes takes two or three milliseconds."""
_UPDATES_PER_CODE_CHECK = 16
_keys_of = attrgetter("labels", "allocatable", "images")
_WEIGHT_PER_ROW_MAX = 16  # with more distinct values per row, most are no longer in use


def text_hash(text: str) -> int:
    """blake2b of 8 bytes, big-endian; breaks ties between nodes with equal totals."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class Columns:
    """Arrays over rows. `size`: rows that were ever in use; `valid`: those in use now.

    `log_end` counts changes; `touched_since(position)` lists the rows that changed after a position.
    """

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache
        self.size = 0
        self.capacity = _FIRST_CAPACITY
        self.valid = np.zeros(self.capacity, np.bool_)
        self.name_hash = np.zeros(self.capacity, np.uint64)
        self.names: list[NodeName] = []
        self.nodes: list[Node | None] = []
        self.codes = Interners()
        self.codes_version = 0  # counts the times that codes were reassigned
        self._recode_above = 0  # a weight of codes: codes in use alone must not cause a recode
        self.nodes_with_image: Counter[str] = Counter()
        self.nodes_with_label: Counter[str] = Counter()
        self.nodes_with_resource: Counter[str] = Counter()
        """A key that no node has needs no column of its own: pods can name any number of labels and resources."""
        self.topology_version = 0
        """Changes when a node is added or deleted, or changes its labels or taints."""
        self.counted_pods = PlacedPodCounts(cache, self.names, self.nodes, self.nodes_with_label)
        self.counted_pods.grow(self.capacity)
        self.placed_totals = self.counted_pods.totals
        self._attached_volumes: AttachedVolumes | None = None
        self.free_volumes = FreeVolumeIndexCache(cache.volumes)
        self.storage_capacity = StorageCapacityCache()
        self.device_rejections = DeviceRejectionCache()
        self._namespaces_version = cache.namespaces_version
        self._late_names = set[NodeName]()  # changed nodes that `refresh_slice` has not applied yet
        self._row_by_name: dict[NodeName, int] = {}
        self._free_rows: list[int] = []
        self._plan_columns: dict[ColumnKind, Array] = {}
        # The columns to read again after a placement; None: to be listed.
        self._usage_columns: list[tuple[ColumnKind, Array]] | None = None
        self._pod_columns: OrderedDict[ColumnKind, Array] = OrderedDict()
        self._constant_columns = ConstantColumns()
        self._log: list[int] = []
        self._log_start = 0
        self._updates = 0
        self._updating: NodeName | None = None
        self._failure: NotCounted | None = None
        self._update_rows(sorted(cache.nodes))
        cache.changed_nodes()

    # ── queries ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def node_count(self) -> int:
        return len(self._row_by_name)

    def row(self, name: NodeName) -> int | None:
        return self._row_by_name.get(name)

    def usage(self, row: int) -> NodeUsage:
        return self._cache.ledger.usage(self.names[row])

    def array(self, kind: ColumnKind) -> Array:
        """The whole column (`capacity` long), built on first use."""
        array = self._plan_columns.get(kind)
        if array is not None:
            return array
        array = self._pod_columns.get(kind)
        if array is None:
            absent = absent_value(kind, self.nodes_with_label, self.nodes_with_resource)
            if absent is not None:
                return self._constant_columns.get(kind.dtype, absent, self.capacity)
            array = self._pod_columns[kind] = self._build_column(kind)
            self._usage_columns = None
            if len(self._pod_columns) > _POD_COLUMNS_MAX:
                self._pod_columns.popitem(last=False)
        else:
            self._pod_columns.move_to_end(kind)
        return array

    @property
    def available_volumes(self) -> AvailableVolumes:
        """Volumes and claims in their current state."""
        return AvailableVolumes(self._cache.volumes)

    @property
    def available_devices(self) -> AvailableDevices:
        """Devices and resource claims in their current state."""
        return AvailableDevices(self._cache.devices)

    def index_volumes_slice(self, pod: Pod) -> bool:
        """See `FreeVolumeIndexCache.build_slice`."""
        claims = pod_volume_claims(pod, self.available_volumes) if pod.claims else ""
        return not isinstance(claims, str) and self.free_volumes.build_slice(
            claims.delayed, self.codes_version
        )

    def claim_uses(self, claim: VolumeClaimKey) -> int:
        """How many volumes of placed pods use the claim, on any node."""
        return self._cache.ledger.claim_uses(claim)

    @property
    def attached_volumes(self) -> AttachedVolumes:
        """Attached volumes by row, counted from the first use on."""
        if self._attached_volumes is None:
            attached = AttachedVolumes(self._cache.volumes, self.capacity, self._node_and_usage)
            for row in range(self.size):
                attached.update_row(row)
            self._attached_volumes = attached
        self._attached_volumes.catch_up()
        return self._attached_volumes

    def _node_and_usage(self, row: int) -> tuple[Node | None, NodeUsage]:
        return self.nodes[row], self.usage(row)

    @property
    def placed_pods(self) -> PlacedPods:
        """Counts of placed pods by row, kept from the first use on."""
        return self.counted_pods.placed

    def gang_members(self, spec: GangMemberSpec) -> GangMembers:
        """Members of gangs by row, counted from the first use on."""
        return self.counted_pods.gang_members(spec)

    def row_of_pod(self, uid: PodUid) -> int | None:
        """The row that the pod is placed on."""
        placement = self._cache.ledger.placement(uid)
        return None if placement is None else self.row(placement.node)

    def selected_label_values(self, pod: Pod) -> tuple[object, ...]:
        """See `PlacedPods`; empty while placed pods are not counted."""
        return self.counted_pods.selected_label_values(pod)

    def materialize_steps(self, kind: ColumnKind) -> Iterator[None]:
        """Build a column that a plan needs, a batch of rows per step, and keep it until `keep_only`.

        The column becomes visible when it is complete. Rows that change meanwhile are read again at
        the end.
        """
        if kind in self._plan_columns:
            return
        array, position, codes = np.zeros(self.capacity, kind.dtype), self.log_end, self.codes
        for start in range(0, self.size, _ROWS_PER_STEP):
            self._read_rows(kind, array, range(start, min(start + _ROWS_PER_STEP, self.size)))
            yield
        touched = self.touched_since(position)
        if touched is None or codes is not self.codes or len(array) != self.capacity:
            array = self._build_column(kind)
        else:
            self._read_rows(kind, array, touched[0] | touched[1])
        self._pod_columns.pop(kind, None)
        self._plan_columns[kind] = array
        self._usage_columns = None

    def keep_only(self, kinds: Collection[ColumnKind]) -> None:
        """Drop the plan columns that no current plan needs."""
        for kind in [kind for kind in self._plan_columns if kind not in kinds]:
            del self._plan_columns[kind]
            self._usage_columns = None

    @property
    def log_end(self) -> int:
        return self._log_start + len(self._log)

    def touched_since(self, position: int) -> tuple[set[int], set[int]] | None:
        """Rows whose node changed, and other rows whose pods changed. None: the log starts later."""
        if position < self._log_start:
            return None
        entries = self._log[position - self._log_start :]
        changed = {entry >> 1 for entry in entries if entry & 1}
        return changed, {entry >> 1 for entry in entries} - changed

    # ── changes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def refresh(self) -> None:
        """Apply the changes of the cache since the last refresh."""
        self._check_rows()
        changed = self._cache.changed_nodes()
        if self._late_names:
            changed, self._late_names = changed | self._late_names, set()
        if changed:
            self._update_rows(sorted(changed))
        if self._namespaces_version != self._cache.namespaces_version:
            self._namespaces_version = self._cache.namespaces_version
            self.counted_pods.namespaces_changed()

    def refresh_slice(self, nodes_max: int | None = None) -> bool:
        """Apply changes of at most `nodes_max` nodes and of a slice's pods; then go on with the first count of placed pods, if
        decisions wait for it. Neither the pods of a node nor a pod are divided. Returns whether to call this again before
        `refresh`, because something is left. Without `nodes_max`, few changes are left to `refresh`."""
        if nodes_max is not None or self._late_names or not self._cache.has_few_changed_nodes:
            self._check_rows()
            self._late_names |= self._cache.changed_nodes()
            self._update_rows(self._names_of_slice(nodes_max or NODES_PER_STEP))
        return bool(self._late_names) or (self.counted_pods.are_missing and self.counted_pods.count_slice())

    @property
    def has_many_changes(self) -> bool:
        return bool(self._late_names) or self._cache.has_many_changed_nodes

    def _names_of_slice(self, nodes_max: int) -> Iterator[NodeName]:
        counted = self.counted_pods
        visits_max, adjusted_max = counted.totals.visits + PODS_PER_STEP, counted.adjusted + ITEMS_PER_STEP
        for name in nsmallest(nodes_max, self._late_names):
            if counted.totals.visits >= visits_max or counted.adjusted >= adjusted_max:
                break
            self._late_names.remove(name)
            yield name

    def _check_rows(self) -> None:
        if self._failure is not None:
            raise self._failure  # rows are half changed

    def _update_rows(self, names: Iterable[NodeName]) -> None:
        """`names` in their order: rows do not affect decisions, but repeated runs must be byte-identical."""
        position = self.log_end
        try:
            for name in names:
                self._updating = name
                self.counted_pods.updating = None
                node, row = self._cache.nodes.get(name), self._row_by_name.get(name)
                if node is None:
                    if row is not None:
                        self._drop_row(row, name)
                elif row is None:
                    self._write_row(self._new_row(name), node)
                elif self.nodes[row] is node:
                    self._refresh_usage(row, node)
                    self._log.append(row << 1)
                else:
                    self._write_row(row, node)
        except Exception as error:
            self._failure = NotCounted(self._updating, self.counted_pods.updating)
            raise self._failure from error
        if self.log_end == position:
            return  # evict nothing: a request for an explanation must not evict what an overlay in use counts
        self.counted_pods.evict_unused()
        if len(self._log) > 4 * self.capacity:
            half = len(self._log) // 2
            del self._log[:half]
            self._log_start += half
        self._updates += 1
        if self._updates % _UPDATES_PER_CODE_CHECK == 0 and self.codes.weight() > max(
            _WEIGHT_PER_ROW_MAX * self.capacity, self._recode_above
        ):
            self._recode()

    def _write_row(self, row: int, node: Node) -> None:
        before = self.nodes[row]
        self.nodes[row] = node
        if before is None or (before.labels, before.taints) != (node.labels, node.taints):
            self.topology_version += 1
        if before is None or _keys_of(before) != _keys_of(node):
            self._count_keys(before, node)
        usage = self.usage(row)
        for kind, array in self._all_columns():
            array[row] = kind.read(node, usage, self.codes)
        if before is not None:
            self.counted_pods.relabel(row, before, node)
        self._update_pod_counts(row, usage)
        self._log.append(row << 1 | 1)

    def _refresh_usage(self, row: int, node: Node) -> None:
        usage = self.usage(row)
        if self._usage_columns is None:
            self._usage_columns = [(kind, array) for kind, array in self._all_columns() if kind.reads_usage]
        for kind, array in self._usage_columns:
            array[row] = kind.read(node, usage, self.codes)
        self._update_pod_counts(row, usage)

    def _update_pod_counts(self, row: int, usage: NodeUsage) -> None:
        if self._attached_volumes is not None:
            self._attached_volumes.update_row(row)
        self.counted_pods.update_row(row, usage.pods)

    def _drop_row(self, row: int, name: NodeName) -> None:
        self._count_keys(self.nodes[row], None)
        self._update_pod_counts(row, NodeUsage())  # while the row still has its node
        self.nodes[row] = None
        self.valid[row] = False
        del self._row_by_name[name]
        self._free_rows.append(row)
        self.topology_version += 1
        if self._attached_volumes is not None:
            self._attached_volumes.update_row(row)
        for _, array in self._all_columns():
            array[row] = 0
        self._log.append(row << 1 | 1)

    def _new_row(self, name: NodeName) -> int:
        if self._free_rows:
            row = self._free_rows.pop()
            self.names[row] = name
        else:
            row = self.size
            if row == self.capacity:
                self._grow()
            self.size += 1
            self.names.append(name)
            self.nodes.append(None)
        self._row_by_name[name] = row
        self.valid[row] = True
        self.name_hash[row] = text_hash(name)
        return row

    def _grow(self) -> None:
        capacity = self.capacity

        def longer(array: Array) -> Array:
            return np.concatenate([array, np.zeros(capacity, array.dtype)])

        self.capacity += capacity
        self.counted_pods.grow(self.capacity)
        if self._attached_volumes is not None:
            self._attached_volumes.grow(self.capacity)
        self._usage_columns = None
        self.valid, self.name_hash = longer(self.valid), longer(self.name_hash)
        for columns in (self._plan_columns, self._pod_columns):
            for kind in columns:
                columns[kind] = longer(columns[kind])

    def _build_column(self, kind: ColumnKind) -> Array:
        array = np.zeros(self.capacity, kind.dtype)
        self._read_rows(kind, array, range(self.size))
        return array

    def _read_rows(self, kind: ColumnKind, array: Array, rows: Iterable[int]) -> None:
        for row in rows:
            node = self.nodes[row]
            array[row] = 0 if node is None else kind.read(node, self.usage(row), self.codes)

    def _all_columns(self) -> Iterator[tuple[ColumnKind, Array]]:
        yield from self._plan_columns.items()
        yield from self._pod_columns.items()

    def _recode(self) -> None:
        """Reassign all codes, which drops values no longer in use. Only columns hold codes."""
        self.codes = Interners()
        self.codes_version += 1
        self.topology_version += 1
        self._pod_columns.clear()
        self._usage_columns = None
        for kind in self._plan_columns:
            self._plan_columns[kind] = self._build_column(kind)
        self._recode_above = 2 * self.codes.weight()

    def _count_keys(self, old: Node | None, new: Node | None) -> None:
        """Count the labels, resources and images of a node that changed."""
        appeared = [] if new is None else [key for key in new.labels if key not in self.nodes_with_label]
        for counter, of_old, of_new in (
            (self.nodes_with_label, old and old.labels, new and new.labels),
            (self.nodes_with_resource, old and old.allocatable, new and new.allocatable),
            (self.nodes_with_image, old and old.images, new and new.images),
        ):
            counter.update((of_new or {}).keys())
            counter.subtract((of_old or {}).keys())
            for key in of_old or ():
                if not counter[key]:
                    del counter[key]
        if appeared:
            self.counted_pods.topology_keys_appeared(appeared)
