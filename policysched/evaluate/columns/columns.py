"""The nodes as columns: one set of NumPy arrays for all policies, refreshed row by row.

A node has a row for as long as it lives; rows of nodes that left are used again. Columns are made when a plan or a pod
first asks for them. A log of touched rows lets those who keep results (`evaluate.evaluation`) catch up with the rows that changed
since they last looked, instead of starting over.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysched.cluster.cache import Cache
from policysched.cluster.devices.availability import DeviceStock
from policysched.cluster.usage import Usage
from policysched.cluster.volumes.availability import Stock
from policysched.evaluate.columns.attached_volumes import AttachedVolumes
from policysched.evaluate.columns.column_kinds import ColumnKind, Interners
from policysched.evaluate.columns.device_answers import DeviceAnswers
from policysched.evaluate.columns.free_volumes import KeptFreeVolumes
from policysched.evaluate.columns.gang_members import Members, MemberTerms
from policysched.evaluate.columns.placed_pods import PlacedPods
from policysched.evaluate.columns.storage_capacity import KeptStorageRoom
from policysched.model.objects import ClaimKey, Node, NodeName, Pod, PodUid

Array = NDArray[Any]

_FIRST_CAPACITY = 64
_POD_COLUMNS_MAX = 256  # columns that only pods asked for: images, keys of selectors, rare resources
_ROWS_A_STEP = 1024
_NO_PODS: Mapping[PodUid, Pod] = {}
_TOUCHES_BETWEEN_COUNTS = 64
_MEMBERS_MAX = 64  # ways to tell members of gangs: one a policy, mostly
_CODES_A_ROW = 16  # beyond this many distinct values a row, most are those of nodes that left


def text_hash(text: str) -> int:
    """blake2b with 8 bytes, big-endian: what equal totals are decided by."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class Columns:
    """Arrays over rows; `size` rows have ever been in use, `valid` says which are now.

    `log_end` counts touches; `touched_since(position)` answers which rows changed after it.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.size = 0
        self.capacity = _FIRST_CAPACITY
        self.valid = np.zeros(self.capacity, np.bool_)
        self.name_hash = np.zeros(self.capacity, np.uint64)
        self.names: list[NodeName] = []
        self.nodes: list[Node | None] = []
        self.codes = Interners()
        self.coding = 0  # how often the codes started anew
        self.nodes_with_image: Counter[str] = Counter()
        self.topology_version = 0
        """Moves when a node comes, goes, or changes its labels or taints."""
        self._placed: PlacedPods | None = None
        self._attached: AttachedVolumes | None = None
        self.free_volumes = KeptFreeVolumes(cache.volumes)
        self.storage_room = KeptStorageRoom()
        self.device_answers = DeviceAnswers()
        self._members: OrderedDict[MemberTerms, Members] = OrderedDict()
        self._pods_of: dict[int, Mapping[PodUid, Pod]] | None = None  # as those who count them know them
        self._namespaces_version = cache.namespaces_version
        self._row_of: dict[NodeName, int] = {}
        self._free: list[int] = []
        self._kept: dict[ColumnKind, Array] = {}
        self._of_usage: list[tuple[ColumnKind, Array]] | None = (
            None  # the columns to read again after a placement
        )
        self._asked: OrderedDict[ColumnKind, Array] = OrderedDict()
        self._log: list[int] = []
        self._log_start = 0
        self._touches = 0
        self._touch(cache.nodes)
        cache.changed_nodes()

    # ── asking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def node_count(self) -> int:
        return len(self._row_of)

    def row(self, name: NodeName) -> int | None:
        return self._row_of.get(name)

    def usage(self, row: int) -> Usage:
        return self._cache.ledger.usage(self.names[row])

    def array(self, kind: ColumnKind) -> Array:
        """The whole column (`capacity` long); made now if nobody asked before."""
        found = self._kept.get(kind)
        if found is not None:
            return found
        found = self._asked.get(kind)
        if found is None:
            found = self._asked[kind] = self._made(kind)
            self._of_usage = None
            if len(self._asked) > _POD_COLUMNS_MAX:
                self._asked.popitem(last=False)
        else:
            self._asked.move_to_end(kind)
        return found

    @property
    def stock(self) -> Stock:
        """Volumes and claims as they are now."""
        return Stock(self._cache.volumes)

    @property
    def devices(self) -> DeviceStock:
        """Devices and claims for them as they are now."""
        return DeviceStock(self._cache.devices)

    def claim_uses(self, claim: ClaimKey) -> int:
        """How many volumes of placed pods are this claim, on whatever node."""
        return self._cache.ledger.claim_uses(claim)

    @property
    def attached(self) -> AttachedVolumes:
        """What is attached to the rows, counted from the first time that somebody asks."""
        if self._attached is None:
            self._attached = AttachedVolumes(self._cache.volumes, self.capacity, self._node_and_usage)
            for row in range(self.size):
                self._attached.put(row)
        self._attached.catch_up()
        return self._attached

    def _node_and_usage(self, row: int) -> tuple[Node | None, Usage]:
        return self.nodes[row], self.usage(row)

    @property
    def placed(self) -> PlacedPods:
        """The pods on the rows, counted from the first time that somebody asks."""
        if self._placed is None:
            self._placed = PlacedPods(self._cache.namespaces, self.capacity)
            self._count_in(self._placed)
        return self._placed

    def members(self, terms: MemberTerms) -> Members:
        """The members of gangs on the rows, counted from the first time that somebody asks."""
        found = self._members.get(terms)
        if found is None:
            found = self._members[terms] = Members(terms, self._cache.namespaces)
            self._count_in(found)
            if len(self._members) > _MEMBERS_MAX:
                self._members.popitem(last=False)
        else:
            self._members.move_to_end(terms)
        return found

    def row_of_pod(self, uid: PodUid) -> int | None:
        """The row that the pod is placed on."""
        placement = self._cache.ledger.placement(uid)
        return None if placement is None else self.row(placement.node)

    def _count_in(self, counts: PlacedPods | Members) -> None:
        """All pods that are placed, for somebody who begins to count them."""
        if self._pods_of is None:
            rows = [row for row, node in enumerate(self.nodes) if node is not None]
            self._pods_of = {row: dict(on_it) for row in rows if (on_it := self.usage(row).pods)}
        for row, pods in self._pods_of.items():
            for pod in pods.values():
                counts.shift(row, pod, 1)

    def asked_labels(self, pod: Pod) -> tuple[object, ...]:
        """See `PlacedPods`; nothing where nobody has asked about placed pods yet."""
        return () if self._placed is None else self._placed.asked_labels(pod)

    def keep_steps(self, kind: ColumnKind) -> Iterator[None]:
        """Make the column, so many rows a step, and keep it for good: a plan needs it.

        Nobody sees it before it is whole. Rows that change in the meantime are read again at the end.
        """
        if kind in self._kept:
            return
        array, position, codes = np.zeros(self.capacity, kind.dtype), self.log_end, self.codes
        for start in range(0, self.size, _ROWS_A_STEP):
            self._read_rows(kind, array, range(start, min(start + _ROWS_A_STEP, self.size)))
            yield
        touched = self.touched_since(position)
        if touched is None or codes is not self.codes or len(array) != self.capacity:
            array = self._made(kind)
        else:
            self._read_rows(kind, array, touched[0] | touched[1])
        self._asked.pop(kind, None)
        self._kept[kind] = array
        self._of_usage = None

    def keep_only(self, kinds: Collection[ColumnKind]) -> None:
        """Give back the columns that plans of the past needed and no plan does now; who asks for one again gets it anew."""
        for kind in [one for one in self._kept if one not in kinds]:
            del self._kept[kind]
            self._of_usage = None

    @property
    def log_end(self) -> int:
        return self._log_start + len(self._log)

    def touched_since(self, position: int) -> tuple[set[int], set[int]] | None:
        """Rows whose node changed, and rows whose pods did (both may be in the first only). None: too long ago."""
        if position < self._log_start:
            return None
        entries = self._log[position - self._log_start :]
        changed = {entry >> 1 for entry in entries if entry & 1}
        return changed, {entry >> 1 for entry in entries} - changed

    # ── changing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def refresh(self) -> None:
        """Take over what changed in the cache since the last time."""
        if self._namespaces_version != self._cache.namespaces_version:
            self._members.clear()  # first: a pod must leave the gang that it was counted in, whatever its namespace says now
        changed = self._cache.changed_nodes()
        if changed:
            self._touch(changed)
        if self._namespaces_version != self._cache.namespaces_version:
            self._namespaces_version = self._cache.namespaces_version
            if self._placed is not None:
                self._placed.namespaces_moved()

    def _touch(self, names: Iterable[NodeName]) -> None:
        # In the order of the names: rows decide nothing, but equal runs should be equal to the last byte.
        for name in sorted(names):
            node, row = self._cache.nodes.get(name), self._row_of.get(name)
            if node is None:
                if row is not None:
                    self._drop(row, name)
            elif row is None:
                self._put(self._new_row(name), node)
            elif self.nodes[row] is node:
                self._refresh_usage(row, node)
                self._log.append(row << 1)
            else:
                self._put(row, node)
        if self._placed is not None:
            self._placed.tidy()
        if len(self._log) > 4 * self.capacity:
            half = len(self._log) // 2
            del self._log[:half]
            self._log_start += half
        self._touches += 1
        if self._touches % _TOUCHES_BETWEEN_COUNTS == 0 and self.codes.total() > _CODES_A_ROW * self.capacity:
            self._recode()

    def _put(self, row: int, node: Node) -> None:
        before = self.nodes[row]
        self._count_images(before, node)
        self.nodes[row] = node
        if before is None or (before.labels, before.taints) != (node.labels, node.taints):
            self.topology_version += 1
        usage = self.usage(row)
        for kind, array in self._all():
            array[row] = kind.read(node, usage, self.codes)
        self._recount(row, usage.pods)
        self._log.append(row << 1 | 1)

    def _refresh_usage(self, row: int, node: Node) -> None:
        usage = self.usage(row)
        if self._of_usage is None:
            self._of_usage = [(kind, array) for kind, array in self._all() if kind.of_usage]
        for kind, array in self._of_usage:
            array[row] = kind.read(node, usage, self.codes)
        self._recount(row, usage.pods)

    def _recount(self, row: int, pods: Mapping[PodUid, Pod]) -> None:
        """Tell those who count them how the row's pods differ from those that they know, and `attached` that they may."""
        if self._attached is not None:
            self._attached.put(row)
        if self._pods_of is None:
            return
        before = self._pods_of.get(row, _NO_PODS)
        for uid, pod in before.items():
            if pods.get(uid) is not pod:
                self._shift(row, pod, -1)
        for uid, pod in pods.items():
            if before.get(uid) is not pod:
                self._shift(row, pod, 1)
        if pods:
            self._pods_of[row] = dict(pods)
        else:
            self._pods_of.pop(row, None)

    def _shift(self, row: int, pod: Pod, by: int) -> None:
        if self._placed is not None:
            self._placed.shift(row, pod, by)
        for members in self._members.values():
            members.shift(row, pod, by)

    def _drop(self, row: int, name: NodeName) -> None:
        self._count_images(self.nodes[row], None)
        self.nodes[row] = None
        self.valid[row] = False
        del self._row_of[name]
        self._free.append(row)
        self.topology_version += 1
        self._recount(row, _NO_PODS)
        for _, array in self._all():
            array[row] = 0
        self._log.append(row << 1 | 1)

    def _new_row(self, name: NodeName) -> int:
        if self._free:
            row = self._free.pop()
            self.names[row] = name
        else:
            row = self.size
            if row == self.capacity:
                self._grow()
            self.size += 1
            self.names.append(name)
            self.nodes.append(None)
        self._row_of[name] = row
        self.valid[row] = True
        self.name_hash[row] = text_hash(name)
        return row

    def _grow(self) -> None:
        more = self.capacity

        def longer(array: Array) -> Array:
            return np.concatenate([array, np.zeros(more, array.dtype)])

        self.capacity += more
        if self._placed is not None:
            self._placed.capacity = self.capacity
        if self._attached is not None:
            self._attached.grow(self.capacity)
        self._of_usage = None
        self.valid, self.name_hash = longer(self.valid), longer(self.name_hash)
        for columns in (self._kept, self._asked):
            for kind in columns:
                columns[kind] = longer(columns[kind])

    def _made(self, kind: ColumnKind) -> Array:
        array = np.zeros(self.capacity, kind.dtype)
        self._read_rows(kind, array, range(self.size))
        return array

    def _read_rows(self, kind: ColumnKind, array: Array, rows: Iterable[int]) -> None:
        for row in rows:
            node = self.nodes[row]
            array[row] = 0 if node is None else kind.read(node, self.usage(row), self.codes)

    def _all(self) -> Iterator[tuple[ColumnKind, Array]]:
        yield from self._kept.items()
        yield from self._asked.items()

    def _recode(self) -> None:
        """Start the codes anew, without the values that only nodes of the past had. Codes live in columns alone."""
        self.codes = Interners()
        self.coding += 1
        self.topology_version += 1
        self._asked.clear()
        self._of_usage = None
        for kind in self._kept:
            self._kept[kind] = self._made(kind)

    def _count_images(self, old: Node | None, new: Node | None) -> None:
        if old is not None and new is not None and old.images == new.images:
            return
        if old is not None:
            self.nodes_with_image.subtract(old.images.keys())
            for image in old.images:
                if not self.nodes_with_image[image]:
                    del self.nodes_with_image[image]
        if new is not None:
            self.nodes_with_image.update(new.images.keys())
