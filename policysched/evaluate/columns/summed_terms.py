"""`SummedTerms`: the sums of very many groups of terms that select the same pods.

A tenant's thousands of pods can each have terms that select every pod of the cluster (`NotIn`, an empty selector). A decision
reads the counts of all groups that select its pod, again for each rule. So of very many they are kept as sums, times the
weights of the terms: one for each use, topology key and sign. Kernels read a sum as they read a group.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysched.evaluate.columns.pod_changes import Changes, PodChanges
from policysched.evaluate.columns.row_counts import DenseCounts
from policysched.evaluate.columns.selector_table import Labels
from policysched.evaluate.columns.term_groups import TermGroup
from policysched.evaluate.columns.term_table import GroupWeights, Integers, PodsToSelect, TermTable
from policysched.model.affinity import TermUse, Weight

_FEW_CELLS = 4_096
"""Of so many groups and pods that two sets of labels differ in, the sums are changed one by one."""


class SummedGroup:
    """The groups of one use and topology key with terms that select a pod, times the weights of one `sign`."""

    __slots__ = ("_kind", "_terms", "row_counts", "sign", "topology_key", "use")

    def __init__(self, terms: "SummedTerms", kind: int, of: tuple[TermUse, str], sign: int) -> None:
        self.use, self.topology_key = of
        self.sign = sign
        self.row_counts = DenseCounts()
        self._terms = terms
        self._kind = kind

    def amounts(self, changes: Changes) -> tuple[NDArray[Any], NDArray[Any]]:
        """The rows and amounts of those changes that count."""
        return self._terms.amounts(changes, self._kind, self.sign)


SelectingGroup = TermGroup | SummedGroup


class SummedTerms:
    """The groups with terms that select `pods`, as `groups`: a sum has weight 1, or -1."""

    def __init__(self, table: TermTable, changes: PodChanges, pods: PodsToSelect) -> None:
        self.groups: tuple[tuple[SelectingGroup, Weight], ...] = ()
        self._table = table
        self._changes = changes
        self._pods = pods
        self._known = 0  # groups of the table
        self._position: int | None = None
        self._by_kind: dict[tuple[int, int], SummedGroup] = {}

    @property
    def size(self) -> int:
        """How many numbers are kept."""
        return sum(group.row_counts.size for group in self._by_kind.values())

    @property
    def is_current(self) -> bool:
        return self._known == len(self._table.groups) and self._position == self._changes.end

    def catch_up(self, of_all: GroupWeights | None = None) -> int:
        """Count the groups and changes since the last call. `of_all`: the weights of all groups, if known. Returns how many terms
        were compared."""
        changes = None if self._position is None else self._changes.since(self._position)
        if changes is None:
            for summed in self._by_kind.values():
                summed.row_counts.clear()
            changes = self._changes.all()
            weights, compared = (of_all, 0) if of_all is not None else self._table.weights(self._pods, 0)
        else:
            new = np.arange(self._known, len(self._table.groups), dtype=np.int32)
            weights, compared = self._table.weights_of(self._pods, np.union1d(changes[0], new))
        self._add(changes, weights)
        self._known, self._position = len(self._table.groups), self._changes.end
        return compared

    def for_labels(self, pods: PodsToSelect, named: Labels) -> tuple["SummedTerms | None", int]:
        """For pods that have a value of some labels, where `pods` of this have none that a term names, and how many terms were
        compared. None: it is about as much to count all."""
        numbers = self._table.naming(named)
        groups = [self._table.groups[number] for number in numbers[:_FEW_CELLS].tolist()]
        if len(numbers) + sum(len(group.row_counts.rows) for group in groups) > _FEW_CELLS:
            return None, 0
        sums = SummedTerms(self._table, self._changes, pods)
        sums._known, sums._position = self._known, self._position
        for (kind, sign), summed in self._by_kind.items():
            sums._sum(kind, sign).row_counts = summed.row_counts.copy()
        cells = [
            (group.number, row, count) for group in groups for row, count in group.row_counts.rows.items()
        ]
        of_cells, rows, counts = np.array(cells, np.int32).reshape(-1, 3).T
        weights, compared = self._table.weights_of(pods, numbers)
        sums._add((of_cells, rows, counts), weights)
        weights, also_compared = self._table.weights_of(self._pods, numbers)
        sums._add((of_cells, rows, -counts), weights)
        return sums, compared + also_compared

    def groups_renumbered(self) -> None:
        """Groups that no pod has any more were dropped. The sums were current."""
        self._known = len(self._table.groups)

    def amounts(self, changes: Changes, kind: int, sign: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The rows and amounts of those changes that count in the sum of a kind."""
        numbers, rows, deltas = (column[self._table.kinds_of(changes[0]) == kind] for column in changes)
        weights, _ = self._table.weights_of(self._pods, np.unique(numbers))
        amounts = self._by_number(weights, sign)[numbers] * deltas
        chosen = np.flatnonzero(amounts != 0)
        return rows[chosen], amounts[chosen]

    def _add(self, changes: Changes, weights: GroupWeights) -> None:
        """Add the changes of groups with these weights. Those without pods have a sum, too: they may have some on an overlay."""
        numbers, rows, deltas = changes
        for sign in (1, -1):
            times = weights.of_sign(sign)
            if not times.any():
                continue
            for kind in np.flatnonzero(
                np.bincount(self._table.kinds_of(weights.numbers[times > 0]))
            ).tolist():
                self._sum(kind, sign)
            amounts = self._by_number(weights, sign)[numbers] * deltas
            chosen = np.flatnonzero(amounts != 0)
            kinds = self._table.kinds_of(numbers[chosen])
            # A radix sort, of so small integers.
            order = np.argsort(kinds.astype(np.min_scalar_type(len(self._table.kinds))), kind="stable")
            kinds, chosen = kinds[order], chosen[order]
            begins = np.flatnonzero(np.diff(kinds, prepend=-1))
            for kind, of_kind in zip(kinds[begins].tolist(), np.split(chosen, begins[1:]), strict=False):
                self._sum(kind, sign).row_counts.add(rows[of_kind], amounts[of_kind])

    def _by_number(self, weights: GroupWeights, sign: int) -> Integers:
        """By number of the group, the sum of its weights of this sign."""
        times = np.zeros(len(self._table.groups), np.int64)
        times[weights.numbers] = weights.of_sign(sign)
        return times

    def _sum(self, kind: int, sign: int) -> SummedGroup:
        summed = self._by_kind.get((kind, sign))
        if summed is None:
            summed = SummedGroup(self, kind, self._table.kinds.values[kind], sign)
            self._by_kind[kind, sign] = summed
            self.groups += ((summed, Weight(sign, 1)),)
        return summed
