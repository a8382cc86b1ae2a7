"""`SummedTerms`: the sums of very many groups of terms that select the same pods.

A tenant's thousands of pods can each have terms that select every pod of the cluster (`NotIn`, an empty selector). A decision
reads the counts of all groups that select its pod, again for each rule. So of very many they are kept as sums, times the
weights of the terms: one for each use, topology key and sign. Kernels read a sum as they read a group.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysched.evaluate.columns.row_counts import DenseCounts
from policysched.evaluate.columns.term_changes import TermChanges
from policysched.evaluate.columns.term_groups import TermGroup
from policysched.evaluate.columns.term_table import Integers, PodsToSelect, TermTable
from policysched.model.affinity import TermUse, Weight


class SummedGroup:
    """The groups of one use and topology key with terms that select a pod, times the weights of one `sign`."""

    __slots__ = ("_kind", "_terms", "row_counts", "sign", "topology_key", "use")

    def __init__(self, terms: "SummedTerms", kind: int, of: tuple[TermUse, str], sign: int) -> None:
        self.use, self.topology_key = of
        self.sign = sign
        self.row_counts = DenseCounts()
        self._terms = terms
        self._kind = kind

    def times(self, groups: NDArray[Any]) -> Integers:
        """How often each pod of these groups counts."""
        return self._terms.times(groups, self._kind, self.sign)


SelectingGroup = TermGroup | SummedGroup


class SummedTerms:
    """The groups with terms that select `pods`, as `groups`: a sum has weight 1, or -1."""

    def __init__(self, table: TermTable, changes: TermChanges, pods: PodsToSelect) -> None:
        self.groups: tuple[tuple[SelectingGroup, Weight], ...] = ()
        self._epoch = changes.epoch
        self._table = table
        self._changes = changes
        self._pods = pods
        self._position = 0
        self._times = {1: np.zeros(0, np.int64), -1: np.zeros(0, np.int64)}
        """By sign and group, the sum of its weights of this sign."""
        self._by_kind: dict[tuple[int, int], SummedGroup] = {}

    @property
    def size(self) -> int:
        """How many numbers are kept."""
        return 2 * len(self._times[1]) + sum(group.row_counts.size for group in self._by_kind.values())

    @property
    def is_current(self) -> bool:
        position = self._epoch, self._position
        return len(self._times[1]) == len(self._table.groups) and position == self._changes.end

    def catch_up(self) -> int:
        """Count the groups and changes since the last call. Returns how many terms were compared."""
        compared = self._compare()
        if self._epoch != self._changes.epoch:
            self._count_again()
        groups, rows, deltas = self._changes.since(self._position)
        self._position = len(self._changes)
        for sign, times in self._times.items():
            amounts = times[groups] * deltas
            for kind, chosen in self._by_kinds(groups, np.flatnonzero(amounts)):
                self._sum(kind, sign).row_counts.add(rows[chosen], amounts[chosen])
        return compared

    def _count_again(self) -> None:
        """Start again after changes were summed up. Groups keep their numbers then, so no term is compared again."""
        self._epoch, self._position = self._changes.epoch, 0
        for summed in self._by_kind.values():
            summed.row_counts.clear()

    def times(self, groups: NDArray[Any], kind: int, sign: int) -> Integers:
        """How often each pod of these groups counts in the sum of a kind."""
        self._compare()
        return np.where(self._table.kinds_of(groups) == kind, self._times[sign][groups], 0)

    def _compare(self) -> int:
        """Compare the new groups. Some of them may have pods on an overlay alone."""
        first = len(self._times[1])
        if first == len(self._table.groups):
            return 0
        weights, compared = self._table.weights(self._pods, first)
        by_sign = (
            (1, weights.magnitudes + weights.totals >> 1),
            (-1, weights.magnitudes - weights.totals >> 1),
        )
        for sign, amounts in by_sign:
            times = np.zeros(len(self._table.groups), np.int64)
            times[:first] = self._times[sign]
            times[weights.numbers] = amounts
            self._times[sign] = times
            for kind, _ in self._by_kinds(weights.numbers, np.flatnonzero(amounts)):
                self._sum(kind, sign)
        return compared

    def _by_kinds(
        self, groups: NDArray[Any], chosen: NDArray[np.intp]
    ) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Divide the chosen groups by their kind."""
        kinds = self._table.kinds_of(groups[chosen])
        for kind in np.unique(kinds).tolist():
            yield kind, chosen[kinds == kind]

    def _sum(self, kind: int, sign: int) -> SummedGroup:
        summed = self._by_kind.get((kind, sign))
        if summed is None:
            summed = SummedGroup(self, kind, self._table.kinds.values[kind], sign)
            self._by_kind[kind, sign] = summed
            self.groups += ((summed, Weight(sign, 1)),)
        return summed
