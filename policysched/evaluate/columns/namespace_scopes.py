"""`NamespaceTable`: which namespaces a selector selects, for thousands of namespaces at once.

A cluster can have ten thousand namespaces, and a pod dozens of terms that select nearly all of them. So namespaces have rows, a selector
is evaluated on columns of their labels, and what it selects is a mask: no step is taken for each namespace.
"""

from array import array
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from policysched.evaluate.columns.interner import UNKNOWN, Interner
from policysched.evaluate.columns.label_columns import LabelColumns
from policysched.evaluate.columns.selector_table import Mask, view
from policysched.model.namespaces import Namespace
from policysched.model.selectors import LabelSelector

_ROWS_PER_ENTRY = 4_096
_NAMES_PER_ENTRY = 64
_GONE_MIN = 256
_NO_ROW = -1


class SelectedNamespaces:
    """The namespaces of some rows, and `others`, which are unknown. Equal ones select the same, until their namespaces change: a
    namespace whose labels change gets another row, and no row is used twice."""

    __slots__ = ("_hash", "_mask", "_others", "_rows", "_table")

    def __init__(self, table: "NamespaceTable", mask: Mask, others: Collection[str]) -> None:
        self._table = table
        self._rows = mask.tobytes().rstrip(
            b"\0"
        )  # equal however many namespaces there are after the last one
        self._mask: Mask = np.frombuffer(self._rows, np.bool_)
        self._others = frozenset(others)
        self._hash = hash((self._rows, self._others))

    @property
    def size(self) -> int:
        """One, plus one for 64 names and for the rows of 4,096 namespaces."""
        return 1 + len(self._others) // _NAMES_PER_ENTRY + len(self._rows) // _ROWS_PER_ENTRY

    def __contains__(self, name: str) -> bool:
        row = self._table.rows.get(name, _NO_ROW)
        return (0 <= row < len(self._mask) and bool(self._mask[row])) or name in self._others

    def by_code(self, names: Interner[str]) -> Mask:
        """bool by the code of each name: whether it is selected."""
        rows = self._table.rows_of(names.values)
        mask = np.zeros(self._table.row_count + 1, np.bool_)  # the last one is that of unknown namespaces
        mask[: len(self._mask)] = self._mask
        selected: Mask = mask.take(rows)  # -1 is the last one
        for name in self._others:
            if (code := names.find(name)) != UNKNOWN:
                selected[code] = True
        return selected

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, SelectedNamespaces)
            and self._table is other._table
            and (self._hash, self._rows, self._others) == (other._hash, other._rows, other._others)
        )

    def __hash__(self) -> int:
        return self._hash


class NamespaceTable:
    """`rows`: by name, of the known namespaces."""

    def __init__(self, namespaces: Mapping[str, Namespace]) -> None:
        self.rows: dict[str, int] = {}
        self.row_count = 0
        self._known: dict[str, Namespace] = {}
        self._is_known = np.zeros(64, np.bool_)  # by row, perhaps with spare ones
        self._columns = LabelColumns()
        self._names: Sequence[str] = ()
        self._rows_of_names = array("i")
        self.update(namespaces)

    @property
    def is_worn(self) -> bool:
        """Whether most rows are of namespaces that are gone or have other labels now."""
        return self.row_count > 2 * len(self.rows) + _GONE_MIN

    def update(self, namespaces: Mapping[str, Namespace]) -> None:
        """Apply what changed."""
        known = self._known
        changed = [namespace for name, namespace in namespaces.items() if known.get(name) is not namespace]
        gone = known.keys() - namespaces.keys() if len(known) + len(changed) > len(namespaces) else ()
        moved = False
        for name in gone:
            del known[name]
            self._is_known[self.rows.pop(name)] = False
            moved = True
        for namespace in changed:
            before = known.get(namespace.name)
            known[namespace.name] = namespace
            if before is None or before.labels != namespace.labels:
                self._add(namespace)
                moved = True
        if moved:
            self._names = ()

    def _add(self, namespace: Namespace) -> None:
        row = self.row_count
        self.row_count += 1
        if row == len(self._is_known):
            self._is_known = np.concatenate((self._is_known, np.zeros(row, np.bool_)))
        before = self.rows.get(namespace.name)
        if before is not None:
            self._is_known[before] = False
        self.rows[namespace.name] = row
        self._is_known[row] = True
        self._columns.append(row, namespace.labels)

    def select(self, selector: LabelSelector, names: Collection[str]) -> SelectedNamespaces:
        """The namespaces that the selector selects, and those of these names."""
        mask = self._is_known[: self.row_count].copy()
        for requirement in selector.requirements:
            self._columns.restrict(mask, requirement)
        for name in names:
            if (row := self.rows.get(name)) is not None:
                mask[row] = True
        return SelectedNamespaces(self, mask, [name for name in names if name not in self.rows])

    def rows_of(self, names: Sequence[str]) -> NDArray[np.int32]:
        """The row of each name, -1 for those of unknown namespaces. `names` only grows."""
        if self._names is not names:
            self._names, self._rows_of_names = names, array("i")
        known = len(self._rows_of_names)
        if known < len(names):
            rows = self.rows
            self._rows_of_names.extend([rows.get(name, _NO_ROW) for name in names[known:]])
        rows_of: NDArray[np.int32] = view(self._rows_of_names).copy()
        return rows_of
