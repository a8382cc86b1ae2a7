"""`Tallies`: counts of the placed pods that matchers match.

A tenant can have thousands of pods, no two with equal labels, thousands of selectors that select nearly all of them, and change
the pods all the time. So a new tally visits no pod and no class of pods: it is summed up from arrays. A pod that comes or goes
visits no tally: a tally catches up with all changes at once when it is read.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from policysched.evaluate.columns.pod_classes import PodClass, PodClassTable, PodMatcher
from policysched.evaluate.columns.row_counts import CountArray, DenseCounts
from policysched.evaluate.columns.summed_terms import SummedGroup
from policysched.evaluate.columns.term_groups import TermGroup

_TALLIES_MAX = 512
_TALLIED_SELECTORS_MAX = 16_384
"""Of all tallies (`PodMatcher.size`): a pod with hundreds of terms has as many in one."""
_CHANGES_MAX = 4_096
"""A tally that missed more changes is summed up anew."""
_FEW_CHANGES = 16  # so few are compared with a selector one by one

Change = tuple[int, PodClass, int]
"""The row, the class of the pod, and 1 or -1."""
_Cells = tuple[NDArray[np.intp], NDArray[np.intp], CountArray]
"""Pods: the indexes of their classes, their rows, and how many they are. A change is a further entry, until there are many."""


class MatchedPodCounts:
    """How many of the matched pods are on each row."""

    __slots__ = ("_counts", "_position", "_tallies", "matcher")

    def __init__(self, tallies: "Tallies", matcher: PodMatcher) -> None:
        self.matcher = matcher
        self._tallies = tallies
        self._counts = DenseCounts(tallies.sum_up(matcher))
        self._position = tallies.position

    @property
    def row_counts(self) -> DenseCounts:
        """Up to date. Read-only."""
        tallies = self._tallies
        if self._position != tallies.position:
            changes = tallies.changes_since(self._position)
            if changes is None:
                self._counts.replace(tallies.sum_up(self.matcher))
            else:
                for row, delta in tallies.matching(self.matcher, changes):
                    self._counts.adjust(row, delta)
            self._position = tallies.position
        return self._counts


PodCount = MatchedPodCounts | TermGroup | SummedGroup
"""What has a count of pods by row."""


class Tallies:
    """The tallies by matcher. A tally that was evicted still catches up. `position`: of the last change of pods."""

    def __init__(self, table: PodClassTable) -> None:
        self.position = 0
        self.selectors = 0
        self.by_matcher: dict[PodMatcher, MatchedPodCounts] = {}
        self._table = table
        self._changes: list[Change] = []  # the last
        self._cells = _arrays(())
        self._cells_position = self._built_count = 0

    def get(self, matcher: PodMatcher) -> MatchedPodCounts:
        tally = self.by_matcher.get(matcher)
        if tally is None:
            tally = self.by_matcher[matcher] = MatchedPodCounts(self, matcher)
            self.selectors += matcher.size
        return tally

    def adjust(self, pod_class: PodClass, row: int, delta: int) -> None:
        """Add a pod of the class to a row (-1: remove one)."""
        self.position += 1
        self._changes.append((row, pod_class, delta))
        if len(self._changes) > _CHANGES_MAX:
            del self._changes[: _CHANGES_MAX // 2]

    def changes_since(self, position: int) -> Sequence[Change] | None:
        """None: they are not known any more."""
        count = self.position - position
        return None if count > len(self._changes) else self._changes[len(self._changes) - count :]

    def matching(self, matcher: PodMatcher, changes: Sequence[Change]) -> list[tuple[int, int]]:
        """The rows and numbers of those pods that the matcher matches."""
        if len(changes) <= _FEW_CHANGES:
            return [(row, delta) for row, pod_class, delta in changes if matcher.matches(pod_class)]
        mask = self._table.mask(matcher)
        return [(row, delta) for row, pod_class, delta in changes if mask[pod_class.index]]

    def sum_up(self, matcher: PodMatcher) -> CountArray:
        """float64 by row: all pods that the matcher matches."""
        indexes, rows, amounts = self._all_pods()
        by_row = np.bincount(rows, weights=amounts * self._table.mask(matcher)[indexes])
        return by_row.astype(np.float64, copy=False)  # without pods they are integers

    def _all_pods(self) -> _Cells:
        changes = self.changes_since(self._cells_position)
        if changes is None or len(self._cells[0]) > 2 * self._built_count + _CHANGES_MAX:
            self._cells = _arrays(
                (row, pod_class, count)
                for pod_class in self._table.classes
                for row, count in pod_class.rows.items()
            )
            self._built_count = len(self._cells[0])
        elif changes:
            indexes, rows, amounts = (
                np.concatenate(parts) for parts in zip(self._cells, _arrays(changes), strict=True)
            )
            self._cells = indexes, rows, amounts
        self._cells_position = self.position
        return self._cells

    def classes_changed(self, table: PodClassTable) -> None:
        """The table was made anew."""
        self._table = table
        self.position += 1
        self._changes.clear()

    def evict_unused(self) -> None:
        """Evict the oldest beyond the limits."""
        if len(self.by_matcher) > _TALLIES_MAX or self.selectors > _TALLIED_SELECTORS_MAX:
            for matcher in list(self.by_matcher)[: len(self.by_matcher) // 2]:
                self.selectors -= matcher.size
                del self.by_matcher[matcher]


def _arrays(changes: Iterable[Change]) -> _Cells:
    cells = [(pod_class.index, row, delta) for row, pod_class, delta in changes]
    columns = np.array(cells, np.intp).reshape(-1, 3).T
    return columns[0].copy(), columns[1].copy(), columns[2].astype(np.float64)
