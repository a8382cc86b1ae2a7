"""`DeviceRefusalCache`: whether each node has devices for claims with a given spec, as a column.

Only unallocated claims are cached, so that the result depends on the node alone. A row is computed
again when the node, its pods or its own devices change (the log of the columns), the whole column
when devices that several nodes share change. Replicas of a pod then recompute a few rows each.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from policysched.cluster.devices.allocator import STEPS_EXCEEDED
from policysched.evaluate.columns.column_kinds import Array
from policysched.model.nodes import Node

DeviceRefusal = tuple[str, int | None]
"""The reason, and the position of the claim that it names."""
DeviceRefusalCheck = Callable[[Node], DeviceRefusal | None]

_CACHED_COLUMNS_MAX = 16


class ChangeLoggedRows(Protocol):
    capacity: int
    size: int
    nodes: list[Node | None]

    @property
    def log_end(self) -> int: ...

    def touched_since(self, position: int) -> tuple[set[int], set[int]] | None: ...


@dataclass(slots=True)
class DeviceRefusalCodes:
    """`codes` by row, 0 where the node has the devices; `refusals[code]` is the reason."""

    codes: Array
    refusals: list[DeviceRefusal | None] = field(default_factory=lambda: [None])
    _code_by_refusal: dict[DeviceRefusal, int] = field(default_factory=dict)

    def code(self, refusal: DeviceRefusal | None) -> int:
        if refusal is None:
            return 0
        code = self._code_by_refusal.get(refusal)
        if code is None:
            code = self._code_by_refusal[refusal] = len(self.refusals)
            self.refusals.append(refusal)
        return code


@dataclass(slots=True)
class _CachedColumn:
    refusal_codes: DeviceRefusalCodes
    position: int
    revision: Hashable


class DeviceRefusalCache:
    def __init__(self) -> None:
        self._columns: OrderedDict[Hashable, _CachedColumn] = OrderedDict()

    def column_for(
        self, rows: ChangeLoggedRows, spec: Hashable, revision: Hashable, check: DeviceRefusalCheck
    ) -> DeviceRefusalCodes:
        """The whole current column. Read-only."""
        cached = self._columns.get(spec)
        touched = None
        if (
            cached is not None
            and cached.revision == revision
            and len(cached.refusal_codes.codes) == rows.capacity
        ):
            touched = rows.touched_since(cached.position)
        if cached is None or touched is None or len(cached.refusal_codes.refusals) > rows.capacity:
            cached = self._columns[spec] = _CachedColumn(
                DeviceRefusalCodes(np.zeros(rows.capacity, np.int32)), rows.log_end, revision
            )
            stale_rows: Sequence[int] = range(rows.size)
        else:
            stale_rows = sorted(touched[0] | touched[1])
        column = cached.refusal_codes
        for row in stale_rows:
            node = rows.nodes[row]
            column.codes[row] = 0 if node is None else column.code(check(node))
        cached.position = rows.log_end
        self._columns.move_to_end(spec)
        if any(refusal is not None and refusal[0] == STEPS_EXCEEDED for refusal in column.refusals):
            del self._columns[spec]  # a search that was cut short says nothing about the next one
        elif len(self._columns) > _CACHED_COLUMNS_MAX:
            self._columns.popitem(last=False)
        return column
