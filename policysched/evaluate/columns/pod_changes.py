"""`PodChanges`: a log of added and removed pods, as columns: the number of their class, or of a group of terms that they have,
the row, and how many were added."""

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysched.evaluate.columns.selector_table import view

_SPARE = 4096
"""Changes are summed up when there are this many more than twice the cells in use. The last half of this many are kept."""

Changes = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""Numbers, rows and deltas. Drop them before a change is added: the arrays could not grow."""


class PodChanges:
    """The sum of all changes is the present count of each number on each row. Positions count all changes ever added."""

    def __init__(self) -> None:
        self.end = 0
        self._numbers = array("i")
        self._rows = array("i")
        self._deltas = array("i")
        self._known_since = 0
        self._size_max = _SPARE

    def add(self, number: int, row: int, delta: int) -> None:
        self.end += 1
        self._numbers.append(number)
        self._rows.append(row)
        self._deltas.append(delta)

    def all(self) -> Changes:
        """All changes; those that were summed up are one for each number and row."""
        return self._from(0)

    def since(self, position: int) -> Changes | None:
        """The changes from the position on; None: some of them were summed up."""
        return self._from(len(self._numbers) - self.end + position) if position >= self._known_since else None

    def _from(self, index: int) -> Changes:
        return view(self._numbers, index), view(self._rows, index), view(self._deltas, index)

    def sum_up_if_long(self) -> None:
        if len(self._numbers) > self._size_max:
            self._sum_up(_SPARE // 2)

    def renumber(self, numbers: NDArray[np.int32]) -> None:
        """`numbers`: the new number of each class or group, by its old one; -1 where no pod is left."""
        self._numbers = array("i", numbers[view(self._numbers)].tobytes())
        self._sum_up(0)

    def _sum_up(self, kept: int) -> None:
        """Sum up all changes but the last `kept`."""
        count = len(self._numbers) - kept
        cells = view(self._numbers)[:count].astype(np.int64) << 32 | view(self._rows)[:count]
        cells, places = np.unique(cells, return_inverse=True)
        sums = np.bincount(places, view(self._deltas)[:count], len(cells)).astype(np.int32)
        in_use = np.flatnonzero(sums)
        cells, sums = cells[in_use], sums[in_use]
        self._numbers = array("i", (cells >> 32).astype(np.int32).tobytes()) + self._numbers[count:]
        self._rows = array("i", (cells & 0xFFFFFFFF).astype(np.int32).tobytes()) + self._rows[count:]
        self._deltas = array("i", sums.tobytes()) + self._deltas[count:]
        self._known_since = self.end - kept
        self._size_max = 2 * len(sums) + kept + _SPARE
