"""`DeviceRejectionCache`: whether each node has devices for claims with a given spec, as a column.

Only unallocated claims are cached, so that the result depends on the node alone. A row is computed
again when the node, its pods or its own devices change (the log of the columns), the whole column
when devices that several nodes share change. Replicas of a pod then recompute a few rows each.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from policysched.cluster.devices.device_overlay import DeviceOverlay
from policysched.cluster.devices.search_limits import SEARCH_CONTINUES, STEPS_EXCEEDED
from policysched.evaluate.columns.column_kinds import Array
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node


class DeviceRejection(NamedTuple):
    """`claim_index`: the position of the claim that the reason names. `stops_attempt`: it is an error."""

    reason: str
    claim_index: int | None
    stops_attempt: bool


class DeviceRejections(Protocol):
    """The rejections of the same claims. `groups`: the positions of nodes, grouped by equal rejection."""

    def of_node(self, node: Node) -> DeviceRejection | None: ...
    def groups(self, nodes: Sequence[Node | None]) -> Sequence[Sequence[int]]: ...


_CACHED_COLUMNS_MAX = 16


class ChangeLoggedRows(Protocol):
    capacity: int
    size: int
    nodes: list[Node | None]

    @property
    def log_end(self) -> int: ...

    def row(self, name: NodeName) -> int | None: ...

    def touched_since(self, position: int) -> tuple[set[int], set[int]] | None: ...


@dataclass(slots=True)
class DeviceRejectionCodes:
    """`codes` by row, 0 where the node has the devices; `rejections[code]` is the reason."""

    codes: Array
    rejections: list[DeviceRejection | None] = field(default_factory=lambda: [None])
    _code_by_rejection: dict[DeviceRejection, int] = field(default_factory=dict)

    def code(self, rejection: DeviceRejection | None) -> int:
        if rejection is None:
            return 0
        code = self._code_by_rejection.get(rejection)
        if code is None:
            code = self._code_by_rejection[rejection] = len(self.rejections)
            self.rejections.append(rejection)
        return code


@dataclass(slots=True)
class _CachedColumn:
    rejection_codes: DeviceRejectionCodes
    position: int
    revision: Hashable
    stamp: Hashable = None


class DeviceRejectionCache:
    def __init__(self) -> None:
        self._columns: OrderedDict[Hashable, _CachedColumn] = OrderedDict()
        self._overlay: DeviceOverlay | None = None
        self._on_overlay: dict[Hashable, _CachedColumn] = {}

    def column_for(
        self,
        rows: ChangeLoggedRows,
        spec: Hashable,
        revision: Hashable,
        stamp: Hashable,
        rejections: DeviceRejections,
    ) -> DeviceRejectionCodes:
        """The whole current column, read-only. If searches exceeded their limit, all rows are searched again when `stamp`
        changes, which it does with the devices of any node."""
        cached = self._columns.get(spec)
        touched = None
        if (
            cached is not None
            and cached.revision == revision
            and cached.stamp in (None, stamp)
            and len(cached.rejection_codes.codes) == rows.capacity
        ):
            touched = rows.touched_since(cached.position)
        if cached is None or touched is None or len(cached.rejection_codes.rejections) > rows.capacity:
            cached = self._columns[spec] = _CachedColumn(
                DeviceRejectionCodes(np.zeros(rows.capacity, np.int32)), rows.log_end, revision
            )
            stale_rows: Sequence[int] = range(rows.size)
        else:
            stale_rows = sorted(touched[0] | touched[1])
        column = cached.rejection_codes
        for row in stale_rows:
            node = rows.nodes[row]
            column.codes[row] = 0 if node is None else column.code(rejections.of_node(node))
        cached.position = rows.log_end
        self._columns.move_to_end(spec)
        reasons = {rejection.reason for rejection in column.rejections if rejection is not None}
        cached.stamp = stamp if STEPS_EXCEEDED in reasons else None
        if SEARCH_CONTINUES in reasons:
            del self._columns[spec]  # a search that was cut short does not predict the next one
        elif len(self._columns) > _CACHED_COLUMNS_MAX:
            self._columns.popitem(last=False)
        return column

    def column_on(
        self,
        overlay: DeviceOverlay,
        rows: ChangeLoggedRows,
        spec: Hashable,
        revision: Hashable,
        of_cluster: DeviceRejectionCodes,
        rejections: DeviceRejections,
    ) -> DeviceRejectionCodes:
        """The same beside what an overlay reserves. Kept while the cluster does not change, for the latest overlay: an evaluation asks
        several times, and members of a gang reserve devices one after the other."""
        if self._overlay is not overlay:
            self._overlay, self._on_overlay = overlay, {}
        cached, revision = self._on_overlay.get(spec), (revision, rows.log_end)
        if cached is None or cached.revision != revision:
            cached = _CachedColumn(deepcopy(of_cluster), 0, revision)
        changed, cached.position = overlay.changes_since(cached.position), overlay.change_count
        changed_rows = [rows.row(name) for name in changed if name is not None]
        groups: Sequence[Sequence[int]] = [(row,) for row in changed_rows if row is not None]
        if None in changed:
            groups = rejections.groups(rows.nodes[: rows.size])
        column = cached.rejection_codes
        for group in groups:
            node = rows.nodes[group[0]]
            if node is not None:
                column.codes[list(group)] = column.code(rejections.of_node(node))
        is_cut_short = any(each is not None and each.reason == SEARCH_CONTINUES for each in column.rejections)
        if is_cut_short:
            self._on_overlay.pop(spec, None)
        else:
            self._on_overlay[spec] = cached
        return column
