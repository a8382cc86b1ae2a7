"""Columns that have the same value in every row, such as those of labels that no node has."""

from collections.abc import Container
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from policysched.evaluate.columns.column_kinds import (
    AllocatableColumn,
    ColumnKind,
    DomainColumn,
    NodeMapEntryColumn,
)
from policysched.evaluate.columns.interner import ABSENT


class ConstantColumns:
    """One read-only array for all columns of a type and value."""

    def __init__(self) -> None:
        self._columns: dict[tuple[np.dtype[Any], int], NDArray[Any]] = {}

    def get(self, dtype: DTypeLike, value: int, capacity: int) -> NDArray[Any]:
        key = np.dtype(dtype), value
        column = self._columns.get(key)
        if column is None or len(column) != capacity:
            column = self._columns[key] = np.full(capacity, value, dtype)
            column.flags.writeable = False
        return column


def absent_value(kind: ColumnKind, labels: Container[str], resources: Container[str]) -> int | None:
    """The value of all rows where the column reads a label or resource that no node has; None: nodes have it."""
    match kind:
        case DomainColumn(key) if key not in labels:
            return 0
        case NodeMapEntryColumn("labels", key) if key not in labels:
            return ABSENT
        case AllocatableColumn(resource) if resource not in resources:
            return 0
        case _:
            return None
