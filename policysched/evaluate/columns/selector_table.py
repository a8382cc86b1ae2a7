"""`SelectorTable`: finds which of very many label selectors select certain labels, for all selectors at once."""

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysched.model.selector_columns import SelectorColumns, label_hash

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int32]
Labels = tuple[tuple[str, str], ...]


def view(numbers: "array[int]", start: int = 0) -> NDArray[Any]:
    """The numbers from `start` on, without a copy. Drop the view before numbers are added: the array could not grow."""
    return np.frombuffer(numbers, numbers.typecode)[start:]


def filtered(numbers: "array[int]", kept: Mask) -> "array[int]":
    return array(numbers.typecode, view(numbers)[kept].tobytes())


def renumbered(numbers: "array[int]", kept: Mask, new: Numbers) -> "array[int]":
    """The numbers that are kept, each replaced by its new number."""
    return array("i", new[view(numbers)[kept]].tobytes())


class SelectorTable(SelectorColumns):
    """A comparison takes nanoseconds for each requirement, or value of one."""

    def selected(self, labels: Mapping[str, str | None], first: int = 0) -> Mask:
        """bool for each selector from the number `first` on. A label without a value has one that no selector names."""
        unmet, start = view(self.unmet, first).copy(), bisect_left(self.changed, first)
        hashes = [label_hash(key, each) for key, value in labels.items() for each in {value, None}]
        found = np.flatnonzero(np.isin(view(self.label_hashes, start), np.array(hashes, np.int64)))
        np.add.at(unmet, view(self.changed, start)[found] - first, view(self.changes, start)[found])
        return np.asarray(unmet == 0)

    def named(self, labels: Labels) -> frozenset[tuple[str, str]]:
        """Those labels of whose values a selector requires something. A pod can have thousands of labels."""
        hashes = {label_hash(key, value): (key, value) for key, value in labels}
        all_hashes = view(self.label_hashes)
        found = np.unique(all_hashes[np.isin(all_hashes, np.array(list(hashes), np.int64))])
        return frozenset([hashes[each] for each in found.tolist()])

    def keep(self, kept: Mask) -> None:
        """Drop the other selectors; those that are kept get new numbers, in the same order."""
        changes_kept = kept[view(self.changed)]
        self.unmet = filtered(self.unmet, kept)
        self.changed = renumbered(self.changed, changes_kept, np.cumsum(kept, dtype=np.int32) - 1)
        self.changes = filtered(self.changes, changes_kept)
        self.label_hashes = filtered(self.label_hashes, changes_kept)
