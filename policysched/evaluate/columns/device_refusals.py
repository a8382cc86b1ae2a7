"""What nodes have for claims of one text, as a column: pods from a template ask about the nodes that others went to, not about all.

Only claims that have nothing yet are asked about here, so that an answer is the node's alone. It is kept until the node, its pods or
its own devices change (the columns' log says so), or devices that several nodes can use.
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
"""In what words, and which claim is meant in them (by its place)."""
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
    """`codes` by row, 0 where nothing is refused; `refusals[code]` says why."""

    codes: Array
    refusals: list[DeviceRefusal | None] = field(default_factory=lambda: [None])
    _code_by_refusal: dict[DeviceRefusal, int] = field(default_factory=dict)

    def code(self, refusal: DeviceRefusal | None) -> int:
        if refusal is None:
            return 0
        found = self._code_by_refusal.get(refusal)
        if found is None:
            found = self._code_by_refusal[refusal] = len(self.refusals)
            self.refusals.append(refusal)
        return found


@dataclass(slots=True)
class _CachedColumn:
    refusal_codes: DeviceRefusalCodes
    position: int
    revision: Hashable


class DeviceRefusalCache:
    def __init__(self) -> None:
        self._columns: OrderedDict[Hashable, _CachedColumn] = OrderedDict()

    def column_for(
        self, rows: ChangeLoggedRows, text: Hashable, stamp: Hashable, ask: DeviceRefusalCheck
    ) -> DeviceRefusalCodes:
        """The whole column, as of now. Not to be changed."""
        kept = self._columns.get(text)
        touched = None
        if kept is not None and kept.revision == stamp and len(kept.refusal_codes.codes) == rows.capacity:
            touched = rows.touched_since(kept.position)
        if kept is None or touched is None or len(kept.refusal_codes.refusals) > rows.capacity:
            kept = self._columns[text] = _CachedColumn(
                DeviceRefusalCodes(np.zeros(rows.capacity, np.int32)), rows.log_end, stamp
            )
            asked: Sequence[int] = range(rows.size)
        else:
            asked = sorted(touched[0] | touched[1])
        for row in asked:
            node = rows.nodes[row]
            kept.refusal_codes.codes[row] = 0 if node is None else kept.refusal_codes.code(ask(node))
        kept.position = rows.log_end
        self._columns.move_to_end(text)
        if any(one is not None and one[0] == STEPS_EXCEEDED for one in kept.refusal_codes.refusals):
            del self._columns[text]  # of a node that was not searched nothing is known
        elif len(self._columns) > _CACHED_COLUMNS_MAX:
            self._columns.popitem(last=False)
        return kept.refusal_codes
