"""`RowCounts`: how many pods of some kind are on each row."""

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

CountArray = NDArray[np.float64]
"""Counts as float64, in which `numpy.bincount` adds; whole numbers stay exact."""

_SPARSE_ROWS_MAX = 32  # up to this many rows are added one by one
_VERSIONS = itertools.count(1)


def new_version() -> int:
    """A version that no count has had."""
    return next(_VERSIONS)


class RowCounts:
    """A count per row: sparse, and from the first use on also an array. Counts with the same `version` are equal: only a copy
    that has not changed, and counts that were always empty, share one. Versions are unique in the process, because an overlay
    that follows the cluster makes its copies anew, after other numbers of changes."""

    __slots__ = ("_array", "rows", "version")

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.version = 0
        self._array: CountArray | None = None

    @property
    def is_empty(self) -> bool:
        return not self.rows

    def adjust(self, row: int, delta: int) -> None:
        self.version = next(_VERSIONS)
        count = self.rows.get(row, 0) + delta
        assert count >= 0, f"row {row} has {count} pods"
        if count:
            self.rows[row] = count
        else:
            del self.rows[row]
        if self._array is not None:
            self._array[row] = count

    def add(self, rows: NDArray[Any], amounts: NDArray[Any]) -> None:
        """Add an amount to each row. A row may be there more than once."""
        for row, amount in zip(rows.tolist(), amounts.tolist(), strict=True):
            self.adjust(row, amount)

    def array(self, capacity: int) -> CountArray:
        """float64[capacity]. Read-only."""
        if self._array is None or len(self._array) != capacity:
            self._array = np.zeros(capacity)
            self._add_rows(self._array, 1)
        return self._array

    def add_to(self, amounts: CountArray, times: int, capacity: int) -> None:
        """Add the counts to `amounts`, which may be shorter than the capacity, not than the rows in use."""
        if len(self.rows) <= _SPARSE_ROWS_MAX:
            self._add_rows(amounts, times)
        else:
            amounts += self.array(capacity)[: len(amounts)] * times

    def copy(self) -> "RowCounts":
        copied = RowCounts()
        copied.rows = dict(self.rows)
        copied.version = self.version
        copied._array = None if self._array is None else self._array.copy()
        return copied

    def _add_rows(self, amounts: CountArray, times: int) -> None:
        for row, count in self.rows.items():
            amounts[row] += count * times


class DenseCounts(RowCounts):
    """Counts that may be on most rows: an array alone, which grows with the rows."""

    __slots__ = ("_amounts",)

    def __init__(self, amounts: CountArray | None = None) -> None:
        super().__init__()
        self.version = new_version()
        self._amounts: CountArray = np.zeros(0) if amounts is None else amounts

    @property
    def size(self) -> int:
        """The length of the array."""
        return len(self._amounts)

    @property
    def is_empty(self) -> bool:
        return not self._amounts.any()

    def adjust(self, row: int, delta: int) -> None:
        self.version = new_version()
        amounts = self.array(row + 1)
        amounts[row] += delta
        assert amounts[row] >= 0, f"row {row} has {amounts[row]} pods"

    def add(self, rows: NDArray[Any], amounts: NDArray[Any]) -> None:
        self.version = new_version()
        added = np.bincount(rows, amounts)
        counts = self.array(len(added))
        counts[: len(added)] += added
        assert (counts >= 0).all(), "a row has fewer than no pods"

    def clear(self) -> None:
        """Set all counts to 0."""
        self.version, self._amounts = new_version(), np.zeros(0)

    def replace(self, amounts: CountArray) -> None:
        """Set the counts to these amounts by row. Rows beyond the end of the array have no pods."""
        size = max(len(amounts), len(self._amounts))
        if not np.array_equal(self.array(size), np.pad(amounts, (0, size - len(amounts)))):
            self.version = new_version()
            self._amounts = amounts

    def array(self, capacity: int) -> CountArray:
        """float64, `capacity` long or longer. Read-only."""
        missing = capacity - len(self._amounts)
        if missing > 0:
            self._amounts = np.concatenate((self._amounts, np.zeros(missing)))
        return self._amounts

    def add_to(self, amounts: CountArray, times: int, capacity: int) -> None:
        amounts += self.array(capacity)[: len(amounts)] * times

    def copy(self) -> "DenseCounts":
        copied = DenseCounts(self._amounts.copy())
        copied.version = self.version
        return copied
