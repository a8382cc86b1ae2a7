"""Raw scores of one rule by row, and the operations on them that keep their masks aligned."""

from dataclasses import dataclass

import numpy as np

from policysched.evaluate.columns.columns import Array


@dataclass(frozen=True, slots=True)
class RawScores:
    """Per row the raw value, whether it is known, and whether the rule applies (`when`). None: on
    every row.
    """

    raw: Array
    known: Array | None = None
    applies: Array | None = None


def pad_to_capacity(raw_scores: RawScores, capacity: int) -> RawScores:
    def longer(array: Array | None) -> Array | None:
        if array is None:
            return None
        padded = np.zeros((capacity, *array.shape[1:]), array.dtype, order="F")  # keeps columns contiguous
        padded[: len(array)] = array
        return padded

    raw = longer(raw_scores.raw)
    assert raw is not None
    return RawScores(raw, longer(raw_scores.known), longer(raw_scores.applies))


def assign_rows(into: RawScores, rows: slice | Array, raw_scores: RawScores) -> None:
    into.raw[rows] = raw_scores.raw
    for target, source in ((into.known, raw_scores.known), (into.applies, raw_scores.applies)):
        if target is not None:
            target[rows] = True if source is None else source


def select_rows(raw_scores: RawScores, rows: slice | Array) -> RawScores:
    return RawScores(
        raw_scores.raw[rows],
        None if raw_scores.known is None else raw_scores.known[rows],
        None if raw_scores.applies is None else raw_scores.applies[rows],
    )
