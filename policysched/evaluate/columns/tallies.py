"""`Tallies`: counts of the placed pods that matchers match.

A tenant can have thousands of pods, no two with equal labels, and thousands of selectors that select nearly all of them, and
change the pods all the time. So a new tally visits no pod and no class of pods: it is summed up from arrays. An added or
removed pod visits no tally: a tally catches up with all changes at once when it is read.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysched.evaluate.columns.pod_changes import Changes, PodChanges
from policysched.evaluate.columns.pod_classes import PodClassTable, PodMatcher
from policysched.evaluate.columns.row_counts import CountArray, DenseCounts
from policysched.evaluate.columns.summed_terms import SummedGroup
from policysched.evaluate.columns.term_groups import TermGroup

_TALLIES_MAX = 512
_TALLIED_SELECTORS_MAX = 16_384
"""Limit for all tallies (`PodMatcher.size`): one tally of a pod with hundreds of terms has as many selectors."""
_FEW_CHANGES = 16  # up to this many are compared with a selector one by one


class MatchedPodCounts:
    """How many of the matched pods are on each row."""

    __slots__ = ("_counts", "_position", "_tallies", "matcher")

    def __init__(self, tallies: "Tallies", matcher: PodMatcher) -> None:
        self.matcher = matcher
        self._tallies = tallies
        self._counts = DenseCounts(tallies.sum_up(matcher))
        self._position = tallies.changes.end

    @property
    def row_counts(self) -> DenseCounts:
        """The counts, brought up to date. Read-only."""
        tallies = self._tallies
        if self._position != tallies.changes.end:
            changes = tallies.changes.since(self._position)
            if changes is None:
                self._counts.replace(tallies.sum_up(self.matcher))
            else:
                rows, deltas = tallies.matching(self.matcher, changes)
                if len(rows):
                    self._counts.add(rows, deltas)
            self._position = tallies.changes.end
        return self._counts


PodCount = MatchedPodCounts | TermGroup | SummedGroup
"""Anything with a count of pods by row."""


class Tallies:
    """The tallies by matcher. An evicted tally still catches up. `changes`: pods added and removed, by index of the class."""

    def __init__(self, table: PodClassTable) -> None:
        self.changes = PodChanges()
        self.selectors = 0
        self.by_matcher: dict[PodMatcher, MatchedPodCounts] = {}
        self._table = table

    def get(self, matcher: PodMatcher) -> MatchedPodCounts:
        tally = self.by_matcher.get(matcher)
        if tally is None:
            tally = self.by_matcher[matcher] = MatchedPodCounts(self, matcher)
            self.selectors += matcher.size
        return tally

    def matching(self, matcher: PodMatcher, changes: Changes) -> tuple[NDArray[Any], NDArray[Any]]:
        """The rows and deltas of those changes whose pods the matcher matches."""
        indexes, rows, deltas = changes
        if len(indexes) <= _FEW_CHANGES:
            classes = self._table.classes
            mask = np.array([matcher.matches(classes[index]) for index in indexes.tolist()], np.bool_)
        else:
            mask = self._table.mask(matcher)[indexes]
        return rows[mask], deltas[mask]

    def sum_up(self, matcher: PodMatcher) -> CountArray:
        """float64 by row: all pods that the matcher matches."""
        return self.weights_by_row(self._table.mask(matcher))

    def weights_by_row(self, weights: NDArray[Any], row_count: int = 0) -> CountArray:
        """float64 by row, at least `row_count` rows: the sum over all pods of the `weights` of their classes."""
        indexes, rows, deltas = self.changes.all()
        by_row = np.bincount(rows, deltas * weights[indexes], row_count)
        return by_row.astype(np.float64, copy=False)  # without pods they are integers

    def replace_table(self, table: PodClassTable) -> None:
        """`table` has the classes without those that were dropped, and gives them their new index."""
        numbers = np.full(len(self._table.classes), -1, np.int32)
        for index, pod_class in enumerate(table.classes):
            numbers[pod_class.index] = pod_class.index = index
        self.changes.renumber(numbers)
        self._table = table

    def evict_unused(self) -> None:
        """Evict the oldest half of the tallies if they exceed a limit."""
        self.changes.sum_up_if_long()
        if len(self.by_matcher) > _TALLIES_MAX or self.selectors > _TALLIED_SELECTORS_MAX:
            for matcher in list(self.by_matcher)[: len(self.by_matcher) // 2]:
                self.selectors -= matcher.size
                del self.by_matcher[matcher]
