"""`PackedLists`: lists of records as flat arrays, all elements end to end, one array per field.

Lists in a column are interned, and each new list is appended once. The elements of the lists of
some rows, in the order of the rows, are then a gather by positions, field by field. The positions
of a whole column are cached while its rows have the same lists.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from policysched.evaluate.columns.dtypes import dtype_of
from policysched.evaluate.columns.interner import Interner
from policysched.lang.types.kinds import RecordType, RecordTypeField, Type, TypeKind
from policysched.lang.types.records import RecordValue

Array = NDArray[Any]

_CACHED_COLUMNS_MAX = 8  # columns of one record type
_CACHED_ROWS_MIN = 64  # gathering fewer rows is cheap


class Elements(Protocol):
    """The elements of the lists of some rows, in order. `owners` are the positions of their rows;
    `nonempty` the positions of rows with elements, and `starts` where their elements begin."""

    owners: Array
    nonempty: Array
    starts: Array

    def field(self, index: int) -> tuple[Array, Array]:
        """Values, and the mask of those that are present. Read-only."""
        ...


class RepeatedElements:
    """The same list for the rows from `first` on, before `end`."""

    def __init__(self, fields: Sequence[tuple[Array, Array]], length: int, first: int, end: int) -> None:
        self._fields, self._times = fields, end - first
        rows = np.arange(first, end)
        self.owners = np.repeat(rows, length)
        self.nonempty = rows if length else rows[:0]
        self.starts = np.arange(len(self.nonempty)) * length

    def field(self, index: int) -> tuple[Array, Array]:
        values, present = self._fields[index]
        return np.tile(values, self._times), np.tile(present, self._times)


class GatheredElements:
    def __init__(self, flat: "PackedLists", codes: Array, known: Array) -> None:
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
        column = self._fields.get(index)
        if column is None:
            values, present = self._flat.fields[index]
            column = self._fields[index] = values[self._positions], present[self._positions]
        return column

    def matches_codes(self, codes: Array, known: Array) -> bool:
        return np.array_equal(codes, self._codes) and np.array_equal(known, self._known)


class PackedLists:
    """All lists of one record type. `starts` and `lengths` are by code of the list; `fields` have spare capacity."""

    def __init__(
        self, record: RecordType, lists: Sequence[tuple[object, object]], strings: Interner[str]
    ) -> None:
        """`lists` are the interned lists of all types, as (type, list) pairs; it grows. Strings become codes."""
        self._record = record
        self._lists = lists
        self._strings = strings
        self._end = 0
        self._is_own_type: Array = np.zeros(0, np.bool_)  # by code: whether the list is of this type
        # Never empty: rows without a list are looked up under code 0 and masked.
        self.starts: Array = np.full(1, -1, np.int64)
        self.lengths: Array = np.full(1, -1, np.int64)
        self.fields = [_empty(field) for field in record.fields]
        self._gathered: OrderedDict[str, GatheredElements] = OrderedDict()

    def gather(self, name: str, codes: Array, known: Array) -> GatheredElements:
        """The elements of the lists with these codes, where `known`. `name` is the column's key in the cache."""
        known = known & self._has_own_list(codes)
        cached = self._gathered.get(name)
        if cached is not None and cached.matches_codes(codes, known):
            self._gathered.move_to_end(name)
            return cached
        self._append_new(codes[known])
        if len(codes) < _CACHED_ROWS_MIN:
            return GatheredElements(self, codes, known)
        gathered = self._gathered[name] = GatheredElements(self, codes.copy(), known.copy())
        if len(self._gathered) > _CACHED_COLUMNS_MAX:
            self._gathered.popitem(last=False)
        return gathered

    def _has_own_list(self, codes: Array) -> Array:
        """The mask of codes of lists of this type. A free row has code 0, which may belong to a list
        of another type; its value is never used."""
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
        """Append the lists that are not stored yet."""
        if len(self._lists) > len(self.starts):
            padding = np.full(max(len(self._lists), 2 * len(self.starts)) - len(self.starts), -1, np.int64)
            self.starts, self.lengths = np.append(self.starts, padding), np.append(self.lengths, padding)
        new = codes[self.starts[codes] < 0]
        for code in dict.fromkeys(new.tolist()):
            records = self._lists[code][1]
            assert isinstance(records, tuple), f"{records!r} is not a list"
            self.starts[code], self.lengths[code] = self._end, len(records)
            self._append(records)

    def _append(self, records: tuple[RecordValue, ...]) -> None:
        start, end = self._end, self._end + len(records)
        for index, added in enumerate(record_columns(self._record, records, self._strings)):
            values, present = self.fields[index]
            if end > len(values):
                grown = max(end, 2 * len(values)) - len(values)
                values = np.append(values, np.zeros(grown, values.dtype))
                present = np.append(present, np.zeros(grown, np.bool_))
                self.fields[index] = values, present
            values[start:end], present[start:end] = added
        self._end = end


def record_columns(
    record: RecordType, records: tuple[RecordValue, ...], strings: Interner[str]
) -> list[tuple[Array, Array]]:
    """The values of each field as its code or number, and the mask of those that are present."""
    columns: list[tuple[Array, Array]] = []
    for index, field in enumerate(record.fields):
        values, present = np.zeros(len(records), dtype_of(field.type.kind)), np.zeros(len(records), np.bool_)
        is_text = field.type.kind is TypeKind.STRING
        for position, element in enumerate(records):
            value = element[index]
            if value is not None:
                values[position] = strings.code(str(value)) if is_text else value
                present[position] = True
        columns.append((values, present))
    return columns


def _has_record(list_type: Type, record: RecordType) -> bool:
    return list_type.element is not None and list_type.element.record == record


def _empty(field: RecordTypeField) -> tuple[Array, Array]:
    return np.zeros(0, dtype_of(field.type.kind)), np.zeros(0, np.bool_)
