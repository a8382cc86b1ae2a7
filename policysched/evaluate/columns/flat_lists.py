"""Lists of records laid out flat: the elements of every list that has been seen, end to end, one array a field.

Lists in a column are interned, and one that is new is appended once. What a question needs, the elements of the lists of some rows
in the order of the rows, is then a gather by places, a field at a time. For a whole column both are kept as long as its rows
have the same lists.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysched.evaluate.columns.dtypes import dtype_of
from policysched.evaluate.columns.interner import Interner
from policysched.lang.types.kinds import RecordType, RecordTypeField, Type, TypeKind
from policysched.lang.types.records import RecordValue

Array = NDArray[Any]

_CACHED_COLUMNS_MAX = 8  # columns of one type that are asked about in turn
_CACHED_ROWS_MIN = 64  # rows: laying out fewer costs nothing


class GatheredLists:
    """The elements of the lists of some rows, in order. `owners` are the places of their rows; of rows with elements `nonempty` are
    the places and `starts` where their elements begin."""

    def __init__(self, flat: "FlatLists", codes: Array, known: Array) -> None:
        self._flat = flat
        self._codes, self._known = codes, known
        lengths = np.where(known, flat.lengths[np.where(known, codes, 0)], 0)
        ends = np.cumsum(lengths)
        first = ends - lengths
        self.owners = np.repeat(np.arange(len(codes)), lengths)
        self.nonempty = np.flatnonzero(lengths)
        self.starts = first[self.nonempty]
        shift = flat.starts[codes[self.nonempty]] - self.starts
        self._positions = np.arange(len(self.owners)) + np.repeat(shift, lengths[self.nonempty])
        self._fields: dict[int, tuple[Array, Array]] = {}

    def field(self, index: int) -> tuple[Array, Array]:
        """Values, and where there is one. Not to be changed."""
        found = self._fields.get(index)
        if found is None:
            values, there = self._flat.fields[index]
            found = self._fields[index] = values[self._positions], there[self._positions]
        return found

    def matches_codes(self, codes: Array, known: Array) -> bool:
        return np.array_equal(codes, self._codes) and np.array_equal(known, self._known)


class FlatLists:
    """All lists of one type. By code of the list `starts` and `lengths`; `fields` have room for more than there is."""

    def __init__(
        self, record: RecordType, lists: Sequence[tuple[object, object]], strings: Interner[str]
    ) -> None:
        """`lists` are all that have a code, of whatever type (second of the pair); it grows. Strings become codes."""
        self._record = record
        self._lists = lists
        self._strings = strings
        self._end = 0
        self._is_own_type: Array = np.zeros(0, np.bool_)  # by code: whether the list is of this type
        # Room for a first one: rows without a list are looked up under its code, and not counted.
        self.starts: Array = np.full(1, -1, np.int64)
        self.lengths: Array = np.full(1, -1, np.int64)
        self.fields = [_empty(field) for field in record.fields]
        self._gathered: OrderedDict[str, GatheredLists] = OrderedDict()

    def gather(self, name: str, codes: Array, known: Array) -> GatheredLists:
        """The elements of the lists with these codes, where there is one. `name` tells columns apart."""
        known = known & self._has_own_list(codes)
        kept = self._gathered.get(name)
        if kept is not None and kept.matches_codes(codes, known):
            self._gathered.move_to_end(name)
            return kept
        self._append_new(codes[known])
        found = GatheredLists(self, codes, known)
        if len(codes) >= _CACHED_ROWS_MIN:
            found = GatheredLists(self, codes.copy(), known.copy())
            self._gathered[name] = found
            if len(self._gathered) > _CACHED_COLUMNS_MAX:
                self._gathered.popitem(last=False)
        return found

    def _has_own_list(self, codes: Array) -> Array:
        """Which of them are lists of this type. The row of a node that left has the code 0, which may be nobody's or that of another
        type's list; what it says, nobody asks."""
        if len(self._lists) > len(self._is_own_type):
            new = [
                isinstance(kind, Type) and _has_record(kind, self._record)
                for kind, _ in self._lists[len(self._is_own_type) :]
            ]
            self._is_own_type = np.append(self._is_own_type, np.array(new, np.bool_))
        if not len(self._is_own_type):
            return np.zeros(len(codes), np.bool_)
        inside = codes < len(self._is_own_type)
        return inside & self._is_own_type[np.where(inside, codes, 0)]

    def _append_new(self, codes: Array) -> None:
        """Append those that are new."""
        if len(self._lists) > len(self.starts):
            more = np.full(max(len(self._lists), 2 * len(self.starts)) - len(self.starts), -1, np.int64)
            self.starts, self.lengths = np.append(self.starts, more), np.append(self.lengths, more)
        new = codes[self.starts[codes] < 0]
        for code in dict.fromkeys(new.tolist()):
            listed = self._lists[code][1]
            assert isinstance(listed, tuple), f"{listed!r} is no list"
            self.starts[code], self.lengths[code] = self._end, len(listed)
            self._append(listed)

    def _append(self, listed: tuple[RecordValue, ...]) -> None:
        end = self._end + len(listed)
        for index, field in enumerate(self._record.fields):
            values, there = self.fields[index]
            if end > len(values):
                more = max(end, 2 * len(values)) - len(values)
                values = np.append(values, np.zeros(more, values.dtype))
                there = np.append(there, np.zeros(more, np.bool_))
                self.fields[index] = values, there
            texts = field.type.kind is TypeKind.STRING
            for place, one in enumerate(listed, self._end):
                value = one[index]
                if value is not None:
                    values[place] = self._strings.code(str(value)) if texts else value
                    there[place] = True
        self._end = end


def _has_record(listed: Type, record: RecordType) -> bool:
    return (
        listed.element is not None and listed.element.record is not None and listed.element.record == record
    )


def _empty(field: RecordTypeField) -> tuple[Array, Array]:
    return np.zeros(0, dtype_of(field.type.kind)), np.zeros(0, np.bool_)
