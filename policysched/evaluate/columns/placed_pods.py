"""The pods on the nodes, counted for those who ask about them: what spreading and inter-pod affinity read.

Two questions, both answered by an array over rows. A *tally*: how many pods that some selectors select are on each
row. A *held term*: how many pods that hold a certain affinity term themselves. Pods that agree on namespace, labels and
terms are one kind, and a kind knows which tallies and terms it counts for, so that a placement costs a few additions
and not a look at every pod. What an overlay lays and lifts is counted on copies of the few arrays concerned.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from policysched.evaluate.columns.gang_members import HypotheticalMembers, Members
from policysched.model.objects import (
    AffinityTerm,
    LabelSelector,
    Namespace,
    Pod,
    PodAffinity,
    PodSelector,
    PodUid,
)

Amounts = NDArray[np.float64]
"""Counts. As float64, because `numpy.bincount` adds in it; whole numbers stay exact."""

Scope = frozenset[str] | None
"""Namespaces by name; None: all."""

_FEW_ROWS = 32  # up to here a term's rows are added one by one
_TALLIES_MAX = 512
_DEAD_KINDS_MAX = 256
_ANSWERS_MAX = 4096


@dataclass(frozen=True, slots=True)
class Meant:
    """The pods that every one of `selectors` selects, each in its scope. `living`: none that is being deleted."""

    selectors: tuple[tuple[Scope, LabelSelector], ...]
    living: bool = False

    def counts(self, kind: "_Kind") -> bool:
        if self.living and kind.terminating:
            return False
        return all(
            (scope is None or kind.namespace in scope) and selector.selects(kind.labels)
            for scope, selector in self.selectors
        )


class Cells:
    """A count a row, kept as the few that are not zero and, once somebody needs it, as an array."""

    __slots__ = ("_array", "rows", "version")

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.version = 0
        self._array: Amounts | None = None

    def shift(self, row: int, by: int) -> None:
        self.version += 1
        count = self.rows.get(row, 0) + by
        assert count >= 0, f"row {row} has {count} pods"
        if count:
            self.rows[row] = count
        else:
            del self.rows[row]
        if self._array is not None:
            self._array[row] = count

    def array(self, capacity: int) -> Amounts:
        """float64[capacity]; not to be changed."""
        if self._array is None or len(self._array) != capacity:
            self._array = np.zeros(capacity)
            self._add_rows(self._array, 1)
        return self._array

    def add_to(self, amounts: Amounts, times: int, capacity: int) -> None:
        """`amounts` may be shorter than the capacity, not than the rows in use."""
        if len(self.rows) <= _FEW_ROWS:
            self._add_rows(amounts, times)
        else:
            amounts += self.array(capacity)[: len(amounts)] * times

    def copy(self) -> "Cells":
        copied = Cells()
        copied.rows = dict(self.rows)
        copied.version = self.version
        copied._array = None if self._array is None else self._array.copy()
        return copied

    def _add_rows(self, amounts: Amounts, times: int) -> None:
        for row, count in self.rows.items():
            amounts[row] += count * times


class Tally:
    """How many of the pods meant are on each row."""

    __slots__ = ("cells", "meant")

    def __init__(self, meant: Meant) -> None:
        self.meant = meant
        self.cells = Cells()


Use = Literal["refuses", "requires", "prefers"]


class HeldTerm:
    """A term of placed pods: they refuse (required anti-affinity), require or prefer (`weight`, negative for
    anti-affinity) the pods that it selects. `cells` count its holders."""

    __slots__ = ("cells", "term", "use", "weight")

    def __init__(self, use: Use, weight: int, term: AffinityTerm) -> None:
        self.use = use
        self.weight = weight
        self.term = term
        self.cells = Cells()


class _Kind:
    """Placed pods that agree on everything that is counted by. `counted_in` has a held term as often as they hold it."""

    __slots__ = ("affinity", "counted_in", "labels", "namespace", "rows", "terminating")

    def __init__(self, pod: Pod) -> None:
        self.namespace = pod.namespace
        self.labels = pod.labels
        self.terminating = pod.terminating
        self.affinity = pod.pod_affinity
        self.rows: dict[int, int] = {}
        self.counted_in: list[Tally | HeldTerm] = []


class PlacedPods:
    """Of the columns' rows. `terms_version` moves when a held term appears or disappears; `selected_keys` are the label
    keys that held terms ask about, and perhaps terms that were held lately, so that pods which agree on those are selected
    by the same terms."""

    def __init__(self, namespaces: Mapping[str, Namespace], capacity: int) -> None:
        self.capacity = capacity
        self.namespaces_version = 0
        self.terms_version = 0
        self.selected_keys: tuple[str, ...] = ()
        self._namespaces = namespaces
        self._kinds: dict[Hashable, _Kind] = {}
        self._dead_kinds = 0
        self._tallies: dict[Meant, Tally] = {}
        self._held: dict[tuple[Use, int, AffinityTerm], HeldTerm] = {}
        self._scopes: dict[PodSelector, Scope] = {}
        self._about: dict[Hashable, tuple[HeldTerm, ...]] = {}

    # ── asking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def meant(self, selectors: Iterable[PodSelector]) -> Meant | None:
        """The pods that all of them select; None where one selects nothing."""
        found = []
        for one in selectors:
            if one.labels is None:
                return None
            found.append((self.scope(one), one.labels))
        return Meant(tuple(found))

    def scope(self, selector: PodSelector) -> Scope:
        """The namespaces that it means now. One that has not been seen matches no selector with requirements."""
        elsewhere = selector.namespace_selector
        if elsewhere is None:
            return frozenset(selector.namespaces)
        if not elsewhere.requirements:
            return None
        found = self._scopes.get(selector)
        if found is None:
            if len(self._scopes) >= _ANSWERS_MAX:
                self._scopes.clear()
            matching = (name for name, space in self._namespaces.items() if elsewhere.selects(space.labels))
            found = self._scopes[selector] = frozenset((*selector.namespaces, *matching))
        return found

    def tally(self, meant: Meant) -> Tally:
        found = self._tallies.get(meant)
        if found is None:
            found = self._tallies[meant] = Tally(meant)
            for kind in self._kinds.values():
                if meant.counts(kind):
                    kind.counted_in.append(found)
                    for row, count in kind.rows.items():
                        found.cells.shift(row, count)
        return found

    def terms_about(self, namespace: str, labels: Mapping[str, str]) -> tuple[HeldTerm, ...]:
        """The held terms that select a pod of this namespace with these labels."""
        key = namespace, *[labels.get(one) for one in self.selected_keys]
        found = self._about.get(key)
        if found is None:
            if len(self._about) > _ANSWERS_MAX:
                self._about.clear()
            found = self._about[key] = tuple(
                held for held in self._held.values() if self._selects(held.term.pods, namespace, labels)
            )
        return found

    def asked_labels(self, pod: Pod) -> tuple[object, ...]:
        """Pods of one namespace that agree on it are selected by the same terms, as long as no term comes that asks about
        yet another key."""
        return self.selected_keys, *[pod.labels.get(key) for key in self.selected_keys]

    def _selects(self, selector: PodSelector, namespace: str, labels: Mapping[str, str]) -> bool:
        if selector.labels is None:
            return False
        scope = self.scope(selector)
        return (scope is None or namespace in scope) and selector.labels.selects(labels)

    # ── changing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def shift(self, row: int, pod: Pod, by: int) -> None:
        """One pod more (1) or less (-1) on a row."""
        kind = self.kind(pod)
        count = kind.rows.get(row, 0) + by
        assert count >= 0, f"row {row} has {count} pods like {pod.full_name}"
        self._dead_kinds -= not kind.rows
        if count:
            kind.rows[row] = count
        else:
            del kind.rows[row]
        self._dead_kinds += not kind.rows
        for counted in kind.counted_in:
            counted.cells.shift(row, by)

    def kind(self, pod: Pod) -> _Kind:
        key = pod.namespace, tuple(sorted(pod.labels.items())), pod.terminating, pod.pod_affinity
        found = self._kinds.get(key)
        if found is None:
            found = self._kinds[key] = _Kind(pod)
            self._dead_kinds += 1  # nobody is of it yet
            found.counted_in += [tally for meant, tally in self._tallies.items() if meant.counts(found)]
            if pod.pod_affinity is not None:
                found.counted_in += self._terms_of(pod.pod_affinity)
        return found

    def namespaces_moved(self) -> None:
        """Selectors of namespaces mean others now."""
        self.namespaces_version += 1
        self._scopes.clear()
        self._about.clear()

    def tidy(self) -> None:
        """Forget kinds that nobody is of any more, the terms that only they held, and tallies beyond a number. Not
        while an overlay is in use."""
        if len(self._tallies) > _TALLIES_MAX:
            for meant in list(self._tallies)[: len(self._tallies) // 2]:
                del self._tallies[meant]
            kept = set(self._tallies.values())
            for kind in self._kinds.values():
                kind.counted_in = [one for one in kind.counted_in if isinstance(one, HeldTerm) or one in kept]
        if self._dead_kinds > _DEAD_KINDS_MAX + len(self._kinds) // 2:
            self._kinds = {key: kind for key, kind in self._kinds.items() if kind.rows}
            self._dead_kinds = 0
            held = {one for kind in self._kinds.values() for one in kind.counted_in}
            self._held = {key: one for key, one in self._held.items() if one in held}
            self.selected_keys = tuple(
                sorted({key for one in self._held.values() for key in _keys(one.term)})
            )
            self._terms_moved()

    def _terms_of(self, affinity: PodAffinity) -> Iterable[HeldTerm]:
        for term in affinity.required_anti:
            yield self._held_term("refuses", 1, term)
        for term in affinity.required:
            yield self._held_term("requires", 1, term)
        for one in affinity.preferred:
            yield self._held_term("prefers", one.weight, one.term)

    def _held_term(self, use: Use, weight: int, term: AffinityTerm) -> HeldTerm:
        found = self._held.get((use, weight, term))
        if found is None:
            found = self._held[use, weight, term] = HeldTerm(use, weight, term)
            self.selected_keys = tuple(sorted(_keys(term).union(self.selected_keys)))
            self._terms_moved()
        return found

    def _terms_moved(self) -> None:
        self.terms_version += 1
        self._about.clear()


def _keys(term: AffinityTerm) -> set[str]:
    """The label keys that it asks about."""
    return {one.key for one in term.pods.labels.requirements} if term.pods.labels else set()


class HypotheticalPods:
    """The same with some pods laid and lifted, for as long as nothing else changes."""

    def __init__(self, placed: Callable[[], PlacedPods]) -> None:
        self._placed = placed
        self._new: dict[tuple[int, PodUid], tuple[Pod, int]] = {}  # moves that nobody has asked about yet
        self._moves: list[tuple[int, _Kind, int]] = []
        self._own: dict[Tally | HeldTerm, Cells] = {}
        self._untouched: set[Tally | HeldTerm] = set()
        self._shifts: list[tuple[int, Pod, int]] = []
        self._members: dict[Members, HypotheticalMembers] = {}

    def shift(self, row: int, pod: Pod, by: int) -> None:
        _, before = self._new.get((row, pod.uid), (pod, 0))
        if before + by:
            self._new[row, pod.uid] = pod, before + by
        else:  # it was taken away and came back, and nobody has looked
            del self._new[row, pod.uid]
        self._shifts.append((row, pod, by))

    def members(self, members: Members) -> HypotheticalMembers:
        """The members of gangs, with those that were laid and without those that were lifted."""
        found = self._members.get(members)
        if found is None:
            found = self._members[members] = HypotheticalMembers(members)
        found.catch_up(self._shifts)
        return found

    def cells(self, counted: Tally | HeldTerm) -> Cells:
        self.take_moves()
        if counted not in self._own and counted not in self._untouched:
            moves = [(row, by) for row, kind, by in self._moves for one in kind.counted_in if one is counted]
            if moves:
                own = self._own[counted] = counted.cells.copy()
                for row, by in moves:
                    own.shift(row, by)
            else:
                self._untouched.add(counted)
        return self._own.get(counted, counted.cells)

    def take_moves(self) -> None:
        """Make what was laid known, so that its terms are found."""
        for (row, _), (pod, by) in self._new.items():
            kind = self._placed().kind(pod)
            self._moves.append((row, kind, by))
            for counted in kind.counted_in:
                if counted in self._untouched:
                    self._untouched.remove(counted)
                    self._own[counted] = counted.cells.copy()
                own = self._own.get(counted)
                if own is not None:  # else it is asked for the first time later, and all moves count then
                    own.shift(row, by)
        self._new.clear()
