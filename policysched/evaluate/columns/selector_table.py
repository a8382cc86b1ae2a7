"""`SelectorTable`: finds which of very many label selectors select certain labels, for all selectors at once."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policysched.model.selector_columns import SelectorColumns, label_hash
from policysched.model.selectors import LabelSelector

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int32]
Labels = tuple[tuple[str, str], ...]
LabelsToSelect = Mapping[str, str | None]

_UNSORTED_MAX = 4_096  # hashes
_RUN_MAX = 65_536  # of these are sorted at once: 5 ms


def view(numbers: "array[int]", start: int = 0) -> NDArray[Any]:
    """The numbers from `start` on, without a copy. Drop the view before numbers are added: the array could not grow."""
    return np.frombuffer(numbers, numbers.typecode)[start:]


def filtered(numbers: "array[int]", kept: Mask) -> "array[int]":
    return array(numbers.typecode, view(numbers)[kept].tobytes())


def renumbered(numbers: "array[int]", kept: Mask, new: Numbers) -> "array[int]":
    """The numbers that are kept, each replaced by its new number."""
    return array("i", new[view(numbers)[kept]].tobytes())


def ranges(begins: NDArray[Any], ends: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The numbers in some ranges, one range after another, and for each number the index of its range."""
    counts = ends - begins
    owners = np.repeat(np.arange(len(counts)), counts)
    return np.arange(len(owners)) + (begins - np.cumsum(counts) + counts)[owners], owners


class _Run(NamedTuple):
    """Sorted hashes and their places, which are below `end` and not below that of the run before."""

    values: NDArray[np.int64]
    places: NDArray[np.int32]
    end: int


def _sorted_run(values: NDArray[np.int64], places: NDArray[np.int32]) -> _Run:
    order = np.argsort(values, kind="stable")  # merges what is sorted
    return _Run(values[order], places[order], int(places.max()) + 1)


class LabelIndex:
    """Finds label hashes in a list. The last hashes are compared one by one. The others are sorted in runs of consecutive places.
    A run has a limited length: a tenant can have millions of hashes, which would be sorted in one piece."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def find(self, hashes: "array[int]", wanted: NDArray[np.int64], start: int = 0) -> NDArray[Any]:
        """The places of the hashes `wanted` (all distinct), from `start` on, in any order."""
        unsorted = max(self._sorted_count, start)
        found = [np.flatnonzero(np.isin(view(hashes, unsorted), wanted)) + unsorted]
        for run in reversed(self._runs):
            if start >= run.end:
                break
            begins, ends = (np.searchsorted(run.values, wanted, side) for side in ("left", "right"))
            places = run.places[ranges(begins, ends)[0]]
            found.append(places[places >= start])
        return np.concatenate(found)

    @property
    def _sorted_count(self) -> int:
        return self._runs[-1].end if self._runs else 0

    def extended(self, hashes: "array[int]") -> None:
        """Call after hashes were appended."""
        while len(hashes) - self._sorted_count > _UNSORTED_MAX:
            begin = self._sorted_count
            places = np.arange(begin, min(len(hashes), begin + _RUN_MAX), dtype=np.int32)
            self._append(_sorted_run(view(hashes)[places], places))

    def _append(self, run: _Run) -> None:
        """Add a run after the others, or merge it with the last one if both are short."""
        if self._runs and len(self._runs[-1].values) + len(run.values) <= _RUN_MAX:
            last = self._runs.pop()
            values = np.concatenate((last.values, run.values))
            run = _sorted_run(values, np.concatenate((last.places, run.places)))
        self._runs.append(run)

    def keep(self, kept: Mask) -> None:
        """Drop the hashes that are not `kept`."""
        numbers, runs = np.cumsum(kept, dtype=np.int32) - 1, self._runs
        self._runs = []
        for run in runs:
            chosen = kept[run.places]
            if chosen.any():
                self._append(
                    _Run(run.values[chosen], numbers[run.places[chosen]], int(numbers[run.end - 1]) + 1)
                )


class SelectorTable(SelectorColumns):
    """A comparison takes nanoseconds for each selector. The selectors that name a label are found without comparing all."""

    def __init__(self) -> None:
        super().__init__()
        self._index = LabelIndex()

    def append(self, selector: LabelSelector | None) -> None:
        super().append(selector)
        self._index.extended(self.label_hashes)

    def extend(self, other: SelectorColumns) -> None:
        super().extend(other)
        self._index.extended(self.label_hashes)

    def selected(self, labels: LabelsToSelect, first: int = 0) -> Mask:
        """bool for each selector from the number `first` on. A label's value None stands for one that no selector names."""
        unmet, start = view(self.unmet, first).copy(), bisect_left(self.changed, first)
        found = self._index.find(self.label_hashes, _hashes(labels), start)
        np.add.at(unmet, view(self.changed)[found] - first, view(self.changes)[found])
        return np.asarray(unmet == 0)

    def selected_of(self, labels: LabelsToSelect, numbers: Numbers) -> Mask:
        """bool for each of these selectors."""
        unmet = view(self.unmet)[numbers]
        places, owners = ranges(
            *(np.searchsorted(view(self.changed), numbers, side) for side in ("left", "right"))
        )
        found = np.flatnonzero(np.isin(view(self.label_hashes)[places], _hashes(labels)))
        np.add.at(unmet, owners[found], view(self.changes)[places[found]])
        return np.asarray(unmet == 0)

    def naming(self, labels: Labels) -> Numbers:
        """The selectors that name the value of one of the labels, perhaps with duplicates."""
        found = self._index.find(self.label_hashes, _array(label_hash(*label) for label in labels))
        numbers: Numbers = view(self.changed)[found]
        return numbers

    def named(self, labels: Labels) -> frozenset[tuple[str, str]]:
        """The labels whose values a selector names. A pod can have thousands of labels."""
        hashes = {label_hash(key, value): (key, value) for key, value in labels}
        found = self._index.find(self.label_hashes, _array(hashes))
        return frozenset([hashes[each] for each in np.unique(view(self.label_hashes)[found]).tolist()])

    def keep(self, kept: Mask) -> None:
        """Drop the other selectors; those that are kept get new numbers, in the same order."""
        changes_kept = kept[view(self.changed)]
        self.unmet = filtered(self.unmet, kept)
        self.changed = renumbered(self.changed, changes_kept, np.cumsum(kept, dtype=np.int32) - 1)
        self.changes = filtered(self.changes, changes_kept)
        self.label_hashes = filtered(self.label_hashes, changes_kept)
        self._index.keep(changes_kept)


def _hashes(labels: LabelsToSelect) -> NDArray[np.int64]:
    """The hashes of the labels and of their keys."""
    return _array({label_hash(key, each) for key, value in labels.items() for each in (value, None)})


def _array(hashes: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(hashes), np.int64)
