"""What nodes have for claims of one text, as a column: pods from a template ask about the nodes that others went to, not about all.

Only claims that have nothing yet are asked about here, so that an answer is the node's alone. It is kept until the node, its pods or
its own devices change (the columns' log says so), or devices that several nodes can use.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from policysched.cluster.devices.allocator import OVERRUN
from policysched.evaluate.columns.column_kinds import Array
from policysched.model.objects import Node

Refusal = tuple[str, int | None]
"""In what words, and which claim is meant in them (by its place)."""
Ask = Callable[[Node], Refusal | None]

_KEPT_MAX = 16


class Rows(Protocol):
    capacity: int
    size: int
    nodes: list[Node | None]

    @property
    def log_end(self) -> int: ...

    def touched_since(self, position: int) -> tuple[set[int], set[int]] | None: ...


@dataclass(slots=True)
class Coded:
    """`codes` by row, 0 where nothing is refused; `refusals[code]` says why."""

    codes: Array
    refusals: list[Refusal | None] = field(default_factory=lambda: [None])
    _known: dict[Refusal, int] = field(default_factory=dict)

    def code(self, refusal: Refusal | None) -> int:
        if refusal is None:
            return 0
        found = self._known.get(refusal)
        if found is None:
            found = self._known[refusal] = len(self.refusals)
            self.refusals.append(refusal)
        return found


@dataclass(slots=True)
class _Kept:
    coded: Coded
    position: int
    stamp: Hashable


class DeviceAnswers:
    def __init__(self) -> None:
        self._by_text: OrderedDict[Hashable, _Kept] = OrderedDict()

    def of(self, rows: Rows, text: Hashable, stamp: Hashable, ask: Ask) -> Coded:
        """The whole column, as of now. Not to be changed."""
        kept = self._by_text.get(text)
        touched = None
        if kept is not None and kept.stamp == stamp and len(kept.coded.codes) == rows.capacity:
            touched = rows.touched_since(kept.position)
        if kept is None or touched is None or len(kept.coded.refusals) > rows.capacity:
            kept = self._by_text[text] = _Kept(Coded(np.zeros(rows.capacity, np.int32)), rows.log_end, stamp)
            asked: Sequence[int] = range(rows.size)
        else:
            asked = sorted(touched[0] | touched[1])
        for row in asked:
            node = rows.nodes[row]
            kept.coded.codes[row] = 0 if node is None else kept.coded.code(ask(node))
        kept.position = rows.log_end
        self._by_text.move_to_end(text)
        if any(one is not None and one[0] == OVERRUN for one in kept.coded.refusals):
            del self._by_text[text]  # of a node that was not searched nothing is known
        elif len(self._by_text) > _KEPT_MAX:
            self._by_text.popitem(last=False)
        return kept.coded
