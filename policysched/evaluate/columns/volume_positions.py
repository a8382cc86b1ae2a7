"""The positions of volumes in an index by codes: of the value of a label, or of a row.

A new volume moves those behind it up by one. Then each structure makes a copy of itself, because a decision that goes on keeps
the positions of before.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from policysched.evaluate.columns.interner import UNKNOWN, Interner

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

NO_CANDIDATE = np.iinfo(np.int64).max
"""No position."""

Key = TypeVar("Key", bound=Hashable)


class Pairs:
    """Pairs of a code (of a label's value, or a row) and the position of a volume, sorted."""

    def __init__(
        self, codes: Sequence[int] | Numbers, positions: Sequence[int] | Numbers, stride: int
    ) -> None:
        self._stride = stride
        self._pairs = np.sort(np.asarray(codes, np.int64) * stride + np.asarray(positions, np.int64))
        self._positions = self._pairs % stride

    def moved_up(self, at: int, codes: Sequence[int] = ()) -> "Pairs":
        """The positions from `at` on are one higher, and `at` is that of a new volume with these codes."""
        all_codes = np.append(self._pairs // self._stride, np.array(codes, np.int64))
        positions = np.append(moved_up(self._positions, at), np.full(len(codes), at))
        return Pairs(all_codes, positions, self._stride + 1)

    def among(self, usable: Mask) -> Numbers:
        return self._pairs[usable[self._positions]]

    def first(self, pairs: Numbers, codes: Numbers, least: Numbers) -> Numbers:
        """For each code, its first position in `pairs` from `least` on."""
        if not len(pairs):
            return np.full(len(codes), NO_CANDIDATE)
        base = codes * self._stride
        found = pairs[np.minimum(np.searchsorted(pairs, base + least), len(pairs) - 1)] - base
        result: Numbers = np.where(
            (codes >= 0) & (found >= least) & (found < self._stride), found, NO_CANDIDATE
        )
        return result


class LabelValueIndex:
    """The volumes whose affinity is one label, by its values. Values that no node has yet have no code."""

    def __init__(self) -> None:
        self.positions: dict[str, list[int]] = {}
        self._code_of: dict[str, int] = {}
        self._without_code: list[str] = []
        self._string_count = -1
        self._pairs: Pairs | None = None

    def add(self, values: Iterable[str], position: int) -> None:
        for value in values:
            if value not in self.positions:
                self._without_code.append(value)
                self._string_count = min(self._string_count, 0)
            self.positions.setdefault(value, []).append(position)

    def moved_up(self, at: int, values: Sequence[str]) -> "LabelValueIndex":
        """The positions from `at` on are one higher, and `at` is that of a new volume with these values."""
        index = copy(self)
        index.positions = lists_moved_up(self.positions, at)
        index._code_of, index._without_code = dict(self._code_of), list(self._without_code)
        index.add(values, at)
        if self._pairs is not None:
            codes = [self._code_of[value] for value in values if value in self._code_of]
            index._pairs = self._pairs.moved_up(at, codes)
        return index

    def pairs(self, strings: Interner[str], stride: int) -> Pairs:
        if self.learn_codes(strings) or self._pairs is None:
            known = [
                (code, position)
                for value, code in self._code_of.items()
                for position in self.positions[value]
            ]
            self._pairs = Pairs([code for code, _ in known], [position for _, position in known], stride)
        return self._pairs

    def learn_codes(self, strings: Interner[str]) -> Sequence[str]:
        """The values that got a code since the last call."""
        if self._string_count == len(strings):
            return ()
        unknown = list(self.positions) if self._string_count < 0 else self._without_code
        self._string_count = len(strings)
        codes = {value: strings.find(value) for value in unknown}
        new = {value: code for value, code in codes.items() if code != UNKNOWN}
        self._code_of |= new
        self._without_code = [value for value in unknown if value not in new]
        return list(new)


def moved_up(positions: Numbers, at: int) -> Numbers:
    """One higher from `at` on."""
    return positions + (positions >= at)


def lists_moved_up(positions: Mapping[Key, Sequence[int]], at: int) -> dict[Key, list[int]]:
    return {key: [each + (each >= at) for each in of_key] for key, of_key in positions.items()}
