"""`TermChanges`: a log of the pods with groups of terms, as columns: the group, the row, and how many pods were added."""

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysched.evaluate.columns.selector_table import view

_SPARE = 4096
"""Changes are summed up when there are this many more than twice the cells in use."""


class TermChanges:
    """Their sum is the present count of each group on each row. `epoch` changes where earlier changes are summed up."""

    def __init__(self) -> None:
        self.epoch = 0
        self._groups = array("i")
        self._rows = array("i")
        self._deltas = array("i")
        self._size_max = _SPARE

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def end(self) -> tuple[int, int]:
        """The epoch, and the position in it."""
        return self.epoch, len(self)

    def add(self, group: int, row: int, delta: int) -> None:
        self._groups.append(group)
        self._rows.append(row)
        self._deltas.append(delta)

    def since(self, position: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """The groups, rows and deltas from the position on. Drop them before a change is added: the arrays could not grow."""
        return view(self._groups, position), view(self._rows, position), view(self._deltas, position)

    def sum_up_if_long(self) -> None:
        if len(self._groups) > self._size_max:
            self._sum_up(self._groups)

    def renumber(self, numbers: NDArray[np.int32]) -> None:
        """`numbers`: the new number of each group, by its old one; -1 for a group without pods."""
        self._sum_up(array("i", numbers[view(self._groups)].tobytes()))

    def _sum_up(self, groups: "array[int]") -> None:
        self.epoch += 1
        cells = view(groups).astype(np.int64) << 32 | view(self._rows)
        cells, places = np.unique(cells, return_inverse=True)
        sums = np.bincount(places, view(self._deltas), len(cells)).astype(np.int32)
        in_use = np.flatnonzero(sums)
        cells, sums = cells[in_use], sums[in_use]
        self._groups = array("i", (cells >> 32).astype(np.int32).tobytes())
        self._rows = array("i", (cells & 0xFFFFFFFF).astype(np.int32).tobytes())
        self._deltas = array("i", sums.tobytes())
        self._size_max = 2 * len(sums) + _SPARE
