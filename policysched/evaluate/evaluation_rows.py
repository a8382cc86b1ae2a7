"""Rows of an evaluation: the best one, selections of rows, and copies of what is kept by row."""

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from policysched.evaluate.columns.column_kinds import ColumnKind
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.rules.raw_scores import RawScores

USAGE_RESULTS_MAX = 4096

REJECTED_TOTAL = -1
"""The total of a row that is no candidate."""


def best_row(total: Array, pod_hash: int, name_hash: Array, row_mask: Array | None = None) -> int | None:
    """The row with the greatest total; among equals the greatest `node_hash XOR pod_hash`. None: no candidate (in
    `row_mask`, bool by row, which may be shorter)."""
    if row_mask is not None:
        masked = np.full_like(total, REJECTED_TOTAL)
        masked[: len(row_mask)] = np.where(row_mask, total[: len(row_mask)], REJECTED_TOTAL)
        total = masked
    greatest = np.maximum.reduce(total, initial=REJECTED_TOTAL)
    if greatest == REJECTED_TOTAL:
        return None
    tied = (total == greatest).nonzero()[0]
    if len(tied) == 1:
        return int(tied[0])
    return int(tied[np.argmax(name_hash[tied] ^ np.uint64(pod_hash))])


def row_selector(rows: set[int]) -> slice | Array:
    """A single row as a slice, which NumPy reads without a copy."""
    if len(rows) == 1:
        row = next(iter(rows))
        return slice(row, row + 1)
    return np.array(sorted(rows), np.intp)


def deep_copy(value: object) -> object:
    match value:
        case np.ndarray():
            return value.copy()
        case list():
            return [deep_copy(item) for item in value]
        case dict():
            return {key: deep_copy(item) for key, item in value.items()}
        case RawScores():
            return RawScores(*(deep_copy(array) for array in (value.raw, value.known, value.applies)))  # type: ignore[arg-type]
        case _:
            return value


@dataclass(slots=True, eq=False)
class UsageResults:
    """What the rules about usage alone make of a row, by the values of the columns that they read (`kinds`; None: not known
    yet, or they read more than columns). It holds for an evaluation and its copies."""

    kinds: tuple[ColumnKind, ...] | None = None
    by_key: dict[Hashable, tuple[Array, Array]] = field(default_factory=dict)

    def put(self, key: Hashable, rejected: Array, weighted: Array) -> None:
        if len(self.by_key) >= USAGE_RESULTS_MAX:
            self.by_key.clear()
        self.by_key[key] = rejected, weighted
