"""`TermGroup`: placed pods with equal affinity terms; `SummedTerms`: very many groups that select the same pods, as a few.

A tenant's thousands of pods can each have terms that select every pod of the cluster (`NotIn`, an empty selector). A decision
reads the counts of all groups that select its pod, again for each rule. So of very many they are kept as sums, times the
weights of the terms: one for each use, topology key and sign. Kernels read a sum as they read a group.
"""

from collections.abc import Callable, Iterable

import numpy as np

from policysched.evaluate.columns.row_counts import CountArray, RowCounts, new_version
from policysched.model.affinity import TermSet, TermUse, Weight

_MEMO_MAX = 4096


class TermGroup:
    """The placed pods that have the terms. `row_counts` counts them. `number`: in the order of their coming. `dropped`: no pod
    has them any more."""

    __slots__ = ("dropped", "number", "row_counts", "terms", "topology_key", "use")

    def __init__(self, terms: TermSet, number: int) -> None:
        self.terms = terms
        self.number = number
        self.dropped = False
        self.use = terms.use
        self.topology_key = terms.topology_key
        self.row_counts = RowCounts()


class SummedCounts(RowCounts):
    """Counts that are on most rows: an array alone, which grows with the rows."""

    __slots__ = ("_amounts",)

    def __init__(self) -> None:
        super().__init__()
        self._amounts: CountArray = np.zeros(0)

    @property
    def size(self) -> int:
        return len(self._amounts)

    @property
    def is_empty(self) -> bool:
        return False

    def adjust(self, row: int, delta: int) -> None:
        self.version = new_version()
        if row >= len(self._amounts):
            self._amounts = np.concatenate((self._amounts, np.zeros(row + 64 - len(self._amounts))))
        self._amounts[row] += delta
        assert self._amounts[row] >= 0, f"row {row} has {self._amounts[row]}"

    def add_to(self, amounts: CountArray, times: int, capacity: int) -> None:
        count = min(len(amounts), len(self._amounts))
        amounts[:count] += self._amounts[:count] * times

    def copy(self) -> "SummedCounts":
        copied = SummedCounts()
        copied.version, copied._amounts = self.version, self._amounts.copy()
        return copied


class SummedGroup:
    """The groups of one use and topology key with terms that select a pod, times the weights of one `sign`."""

    __slots__ = ("row_counts", "sign", "terms", "topology_key", "use")

    def __init__(self, terms: "SummedTerms", use: TermUse, topology_key: str, sign: int) -> None:
        self.terms = terms
        self.use = use
        self.topology_key = topology_key
        self.sign = sign
        self.row_counts = SummedCounts()

    def times(self, group: TermGroup) -> int:
        """How often each pod of the group counts."""
        if group.use != self.use or group.topology_key != self.topology_key:
            return 0
        return self.terms.amounts(group)[self.sign < 0]


SelectingGroup = TermGroup | SummedGroup
WeightOf = Callable[[TermGroup], Weight | None]


class SummedTerms:
    """The groups with terms that select a pod, as `groups`: a sum has weight 1, or -1. `weight_of`: of the terms of a group that
    do; it never changes."""

    def __init__(self, weight_of: WeightOf) -> None:
        self.groups: tuple[tuple[SelectingGroup, Weight], ...] = ()
        self._weight_of = weight_of
        self._by_kind: dict[tuple[TermUse, str, int], SummedGroup] = {}
        self._memo: dict[TermGroup, tuple[int, int]] = {}

    @property
    def size(self) -> int:
        """In numbers that are kept."""
        return sum(group.row_counts.size for group in self._by_kind.values())

    def amounts(self, group: TermGroup) -> tuple[int, int]:
        """The sums of its positive weights and of its negative ones, without the sign."""
        amounts = self._memo.get(group)
        if amounts is None:
            weight = self._weight_of(group)
            amounts = (0, 0) if weight is None else _amounts(group, weight)
            if len(self._memo) >= _MEMO_MAX:
                self._memo.clear()
            self._memo[group] = amounts
        return amounts

    def forget_amounts(self) -> None:
        """They would keep groups that were dropped."""
        self._memo.clear()

    def register(self, group: TermGroup) -> None:
        """It has no pod yet, perhaps on an overlay."""
        self._sums(group, self.amounts(group))

    def add_group(self, group: TermGroup, weight: Weight) -> None:
        """With all its pods."""
        for summed, times in self._sums(group, _amounts(group, weight)):
            for row, count in group.row_counts.rows.items():
                summed.row_counts.adjust(row, times * count)

    def adjust(self, group: TermGroup, row: int, delta: int) -> None:
        for summed, times in self._sums(group, self.amounts(group)):
            summed.row_counts.adjust(row, times * delta)

    def _sums(self, group: TermGroup, amounts: tuple[int, int]) -> Iterable[tuple[SummedGroup, int]]:
        sums = []
        for sign, times in zip((1, -1), amounts, strict=True):
            if times:
                kind = group.use, group.topology_key, sign
                summed = self._by_kind.get(kind)
                if summed is None:
                    summed = self._by_kind[kind] = SummedGroup(self, *kind)
                    self.groups += ((summed, Weight(sign, 1)),)
                sums.append((summed, times))
        return sums


def _amounts(group: TermGroup, weight: Weight) -> tuple[int, int]:
    if group.use == "rejects":
        return 1, 0  # however many of its terms select the pod
    return (weight.magnitude + weight.total) // 2, (weight.magnitude - weight.total) // 2
