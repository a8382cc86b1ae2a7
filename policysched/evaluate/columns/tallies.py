"""`Tallies`: counts of the placed pods that matchers match, kept as pods come and go.

A tenant can have thousands of pods, no two with equal labels, and thousands of selectors that select nearly all of them. So a new
tally visits no pod and no class of pods: it is summed up from arrays. And no class keeps a list that each new tally is added to,
or that each old one is removed from: when pods of a class change, it looks for the tallies that came since.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from policysched.evaluate.columns.pod_classes import MatchedPodCounts, PodClass, PodClassTable, PodMatcher
from policysched.evaluate.columns.row_counts import DenseCounts

_TALLIES_MAX = 512
_TALLIED_SELECTORS_MAX = 16_384
"""Of all tallies (`PodMatcher.size`): a pod with hundreds of terms has as many in one."""
_CHANGES_MAX = 4_096


class Tallies:
    """The tallies by matcher. `version`: until it changes, a matcher has the same tally."""

    def __init__(self) -> None:
        self.version = 0
        self.selectors = 0
        self.by_matcher: dict[PodMatcher, MatchedPodCounts] = {}
        self._by_namespace: dict[str | None, list[MatchedPodCounts]] = {}
        """By the namespace of all pods that a matcher can match; None: of several. In the order of their coming."""
        self._of_class: dict[PodClass, tuple[int, list[MatchedPodCounts]]] = {}
        """Those up to a number that count the pods of a class."""
        self._last_number = 0
        self._cells = _Cells()

    def get(self, matcher: PodMatcher, table: PodClassTable, capacity: int) -> MatchedPodCounts:
        tally = self.by_matcher.get(matcher)
        if tally is None:
            self._last_number += 1
            amounts = self._cells.amounts_by_row(table, table.mask(matcher), capacity)
            tally = self.by_matcher[matcher] = MatchedPodCounts(
                matcher, DenseCounts(amounts), self._last_number
            )
            self._by_namespace.setdefault(matcher.namespace, []).append(tally)
            self.selectors += matcher.size
        return tally

    def of(self, pod_class: PodClass) -> Sequence[MatchedPodCounts]:
        """The tallies that count the pods of the class."""
        until, tallies = self._of_class.get(pod_class, (0, []))
        if until != self._last_number:
            for namespace in (pod_class.namespace, None):
                for tally in reversed(self._by_namespace.get(namespace, ())):
                    if tally.number <= until:
                        break
                    if tally.matcher.matches(pod_class):
                        tallies.append(tally)
            self._of_class[pod_class] = self._last_number, tallies
        return tallies

    def adjust(self, pod_class: PodClass, row: int, delta: int) -> None:
        """Add pods of the class to a row (-1: remove one)."""
        self._cells.changed(pod_class, row, delta)
        for tally in self.of(pod_class):
            tally.row_counts.adjust(row, delta)

    def classes_changed(self) -> None:
        """The table was made anew."""
        self._of_class.clear()
        self._cells.forget()

    def evict_unused(self) -> None:
        """Evict the oldest beyond the limits. Not while an overlay is in use."""
        if len(self.by_matcher) <= _TALLIES_MAX and self.selectors <= _TALLIED_SELECTORS_MAX:
            return
        self.version += 1
        for matcher in list(self.by_matcher)[: len(self.by_matcher) // 2]:
            self.selectors -= matcher.size
            del self.by_matcher[matcher]
        self._of_class.clear()  # classes look for theirs again
        self._by_namespace.clear()
        for matcher, tally in self.by_matcher.items():
            self._by_namespace.setdefault(matcher.namespace, []).append(tally)


class _Cells:
    """The placed pods as arrays: how many of which class are on which row. Changes are further entries, until there are many."""

    def __init__(self) -> None:
        self._arrays: tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]] | None = None
        self._built_count = 0
        self._changes: list[tuple[int, int, int]] = []

    def forget(self) -> None:
        self._arrays = None
        self._changes.clear()

    def changed(self, pod_class: PodClass, row: int, delta: int) -> None:
        if self._arrays is not None:
            self._changes.append((pod_class.index, row, delta))
            if len(self._changes) > _CHANGES_MAX:
                self.forget()

    def amounts_by_row(
        self, table: PodClassTable, mask: NDArray[np.bool_], capacity: int
    ) -> NDArray[np.float64]:
        """float64[capacity]: the pods of the classes."""
        if self._arrays is None or len(self._arrays[0]) > 2 * self._built_count + _CHANGES_MAX:
            self.forget()
            self._arrays = _arrays(
                (pod_class.index, row, count)
                for pod_class in table.classes
                for row, count in pod_class.rows.items()
            )
            self._built_count = len(self._arrays[0])
        elif self._changes:
            indexes, rows, amounts = _arrays(self._changes)
            before = self._arrays
            self._arrays = (
                np.concatenate((before[0], indexes)),
                np.concatenate((before[1], rows)),
                np.concatenate((before[2], amounts)),
            )
            self._changes.clear()
        indexes, rows, amounts = self._arrays
        by_row = np.bincount(rows, weights=amounts * mask[indexes], minlength=capacity)
        return by_row.astype(np.float64, copy=False)  # without pods they are integers


def _arrays(
    cells: Iterable[tuple[int, int, int]],
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    table = np.array(list(cells), np.intp).reshape(-1, 3)
    return table[:, 0].copy(), table[:, 1].copy(), table[:, 2].astype(np.float64)
