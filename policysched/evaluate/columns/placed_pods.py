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

from policysched.evaluate.columns.gang_members import GangMembers, HypotheticalGangMembers
from policysched.model.affinity import PodAffinity, PodAffinityTerm, PodSelector
from policysched.model.identifiers import PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod
from policysched.model.selectors import LabelSelector

CountArray = NDArray[np.float64]
"""Counts. As float64, because `numpy.bincount` adds in it; whole numbers stay exact."""

NamespaceScope = frozenset[str] | None
"""Namespaces by name; None: all."""

_SPARSE_ROWS_MAX = 32  # up to here a term's rows are added one by one
_TALLIES_MAX = 512
_EMPTY_CLASSES_MAX = 256
_CACHE_ENTRIES_MAX = 4096


@dataclass(frozen=True, slots=True)
class PodMatcher:
    """The pods that every one of `selectors` selects, each in its scope. `exclude_terminating`: none that is being deleted."""

    selectors: tuple[tuple[NamespaceScope, LabelSelector], ...]
    exclude_terminating: bool = False

    def matches(self, kind: "_PodClass") -> bool:
        if self.exclude_terminating and kind.terminating:
            return False
        return all(
            (scope is None or kind.namespace in scope) and selector.selects(kind.labels)
            for scope, selector in self.selectors
        )


class RowCounts:
    """A count a row, kept as the few that are not zero and, once somebody needs it, as an array."""

    __slots__ = ("_array", "rows", "version")

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.version = 0
        self._array: CountArray | None = None

    def adjust(self, row: int, by: int) -> None:
        self.version += 1
        count = self.rows.get(row, 0) + by
        assert count >= 0, f"row {row} has {count} pods"
        if count:
            self.rows[row] = count
        else:
            del self.rows[row]
        if self._array is not None:
            self._array[row] = count

    def array(self, capacity: int) -> CountArray:
        """float64[capacity]; not to be changed."""
        if self._array is None or len(self._array) != capacity:
            self._array = np.zeros(capacity)
            self._add_rows(self._array, 1)
        return self._array

    def add_to(self, amounts: CountArray, times: int, capacity: int) -> None:
        """`amounts` may be shorter than the capacity, not than the rows in use."""
        if len(self.rows) <= _SPARSE_ROWS_MAX:
            self._add_rows(amounts, times)
        else:
            amounts += self.array(capacity)[: len(amounts)] * times

    def copy(self) -> "RowCounts":
        copied = RowCounts()
        copied.rows = dict(self.rows)
        copied.version = self.version
        copied._array = None if self._array is None else self._array.copy()
        return copied

    def _add_rows(self, amounts: CountArray, times: int) -> None:
        for row, count in self.rows.items():
            amounts[row] += count * times


class PodTally:
    """How many of the pods meant are on each row."""

    __slots__ = ("matcher", "row_counts")

    def __init__(self, meant: PodMatcher) -> None:
        self.matcher = meant
        self.row_counts = RowCounts()


TermUse = Literal["refuses", "requires", "prefers"]


class ExistingPodTerm:
    """A term of placed pods: they refuse (required anti-affinity), require or prefer (`weight`, negative for
    anti-affinity) the pods that it selects. `row_counts` count its holders."""

    __slots__ = ("row_counts", "term", "use", "weight")

    def __init__(self, use: TermUse, weight: int, term: PodAffinityTerm) -> None:
        self.use = use
        self.weight = weight
        self.term = term
        self.row_counts = RowCounts()


class _PodClass:
    """Placed pods that agree on everything that is counted by. `counted_in` has a held term as often as they hold it."""

    __slots__ = ("affinity", "counted_in", "labels", "namespace", "rows", "terminating")

    def __init__(self, pod: Pod) -> None:
        self.namespace = pod.namespace
        self.labels = pod.labels
        self.terminating = pod.terminating
        self.affinity = pod.pod_affinity
        self.rows: dict[int, int] = {}
        self.counted_in: list[PodTally | ExistingPodTerm] = []


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
        self._pod_classes: dict[Hashable, _PodClass] = {}
        self._empty_classes = 0
        self._tallies: dict[PodMatcher, PodTally] = {}
        self._terms: dict[tuple[TermUse, int, PodAffinityTerm], ExistingPodTerm] = {}
        self._resolved_scopes: dict[PodSelector, NamespaceScope] = {}
        self._selecting_terms: dict[Hashable, tuple[ExistingPodTerm, ...]] = {}

    # ── asking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def matcher(self, selectors: Iterable[PodSelector]) -> PodMatcher | None:
        """The pods that all of them select; None where one selects nothing."""
        found = []
        for one in selectors:
            if one.label_selector is None:
                return None
            found.append((self.resolve_scope(one), one.label_selector))
        return PodMatcher(tuple(found))

    def resolve_scope(self, selector: PodSelector) -> NamespaceScope:
        """The namespaces that it means now. One that has not been seen matches no selector with requirements."""
        elsewhere = selector.namespace_selector
        if elsewhere is None:
            return frozenset(selector.namespaces)
        if not elsewhere.requirements:
            return None
        found = self._resolved_scopes.get(selector)
        if found is None:
            if len(self._resolved_scopes) >= _CACHE_ENTRIES_MAX:
                self._resolved_scopes.clear()
            matching = (name for name, space in self._namespaces.items() if elsewhere.selects(space.labels))
            found = self._resolved_scopes[selector] = frozenset((*selector.namespaces, *matching))
        return found

    def tally(self, meant: PodMatcher) -> PodTally:
        found = self._tallies.get(meant)
        if found is None:
            found = self._tallies[meant] = PodTally(meant)
            for kind in self._pod_classes.values():
                if meant.matches(kind):
                    kind.counted_in.append(found)
                    for row, count in kind.rows.items():
                        found.row_counts.adjust(row, count)
        return found

    def terms_selecting(self, namespace: str, labels: Mapping[str, str]) -> tuple[ExistingPodTerm, ...]:
        """The held terms that select a pod of this namespace with these labels."""
        key = namespace, *[labels.get(one) for one in self.selected_keys]
        found = self._selecting_terms.get(key)
        if found is None:
            if len(self._selecting_terms) > _CACHE_ENTRIES_MAX:
                self._selecting_terms.clear()
            found = self._selecting_terms[key] = tuple(
                held for held in self._terms.values() if self._selects(held.term.pods, namespace, labels)
            )
        return found

    def selected_label_values(self, pod: Pod) -> tuple[object, ...]:
        """Pods of one namespace that agree on it are selected by the same terms, as long as no term comes that asks about
        yet another key."""
        return self.selected_keys, *[pod.labels.get(key) for key in self.selected_keys]

    def _selects(self, selector: PodSelector, namespace: str, labels: Mapping[str, str]) -> bool:
        if selector.label_selector is None:
            return False
        scope = self.resolve_scope(selector)
        return (scope is None or namespace in scope) and selector.label_selector.selects(labels)

    # ── changing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def adjust(self, row: int, pod: Pod, by: int) -> None:
        """One pod more (1) or less (-1) on a row."""
        kind = self.pod_class(pod)
        count = kind.rows.get(row, 0) + by
        assert count >= 0, f"row {row} has {count} pods like {pod.full_name}"
        self._empty_classes -= not kind.rows
        if count:
            kind.rows[row] = count
        else:
            del kind.rows[row]
        self._empty_classes += not kind.rows
        for counted in kind.counted_in:
            counted.row_counts.adjust(row, by)

    def pod_class(self, pod: Pod) -> _PodClass:
        key = pod.namespace, tuple(sorted(pod.labels.items())), pod.terminating, pod.pod_affinity
        found = self._pod_classes.get(key)
        if found is None:
            found = self._pod_classes[key] = _PodClass(pod)
            self._empty_classes += 1  # nobody is of it yet
            found.counted_in += [tally for meant, tally in self._tallies.items() if meant.matches(found)]
            if pod.pod_affinity is not None:
                found.counted_in += self._terms_of(pod.pod_affinity)
        return found

    def namespaces_changed(self) -> None:
        """Selectors of namespaces mean others now."""
        self.namespaces_version += 1
        self._resolved_scopes.clear()
        self._selecting_terms.clear()

    def evict_unused(self) -> None:
        """Forget kinds that nobody is of any more, the terms that only they held, and tallies beyond a number. Not
        while an overlay is in use."""
        if len(self._tallies) > _TALLIES_MAX:
            for meant in list(self._tallies)[: len(self._tallies) // 2]:
                del self._tallies[meant]
            kept = set(self._tallies.values())
            for kind in self._pod_classes.values():
                kind.counted_in = [
                    one for one in kind.counted_in if isinstance(one, ExistingPodTerm) or one in kept
                ]
        if self._empty_classes > _EMPTY_CLASSES_MAX + len(self._pod_classes) // 2:
            self._pod_classes = {key: kind for key, kind in self._pod_classes.items() if kind.rows}
            self._empty_classes = 0
            held = {one for kind in self._pod_classes.values() for one in kind.counted_in}
            self._terms = {key: one for key, one in self._terms.items() if one in held}
            self.selected_keys = tuple(
                sorted({key for one in self._terms.values() for key in _selected_keys(one.term)})
            )
            self._terms_changed()

    def _terms_of(self, affinity: PodAffinity) -> Iterable[ExistingPodTerm]:
        for term in affinity.required_anti:
            yield self._existing_pod_term("refuses", 1, term)
        for term in affinity.required:
            yield self._existing_pod_term("requires", 1, term)
        for one in affinity.preferred:
            yield self._existing_pod_term("prefers", one.weight, one.term)

    def _existing_pod_term(self, use: TermUse, weight: int, term: PodAffinityTerm) -> ExistingPodTerm:
        found = self._terms.get((use, weight, term))
        if found is None:
            found = self._terms[use, weight, term] = ExistingPodTerm(use, weight, term)
            self.selected_keys = tuple(sorted(_selected_keys(term).union(self.selected_keys)))
            self._terms_changed()
        return found

    def _terms_changed(self) -> None:
        self.terms_version += 1
        self._selecting_terms.clear()


def _selected_keys(term: PodAffinityTerm) -> set[str]:
    """The label keys that it asks about."""
    return {one.key for one in term.pods.label_selector.requirements} if term.pods.label_selector else set()


class HypotheticalPlacedPods:
    """The same with some pods laid and lifted, for as long as nothing else changes."""

    def __init__(self, placed: Callable[[], PlacedPods]) -> None:
        self._placed = placed
        self._pending_changes: dict[
            tuple[int, PodUid], tuple[Pod, int]
        ] = {}  # moves that nobody has asked about yet
        self._applied_changes: list[tuple[int, _PodClass, int]] = []
        self._copies: dict[PodTally | ExistingPodTerm, RowCounts] = {}
        self._unchanged: set[PodTally | ExistingPodTerm] = set()
        self._all_changes: list[tuple[int, Pod, int]] = []
        self._members: dict[GangMembers, HypotheticalGangMembers] = {}

    def adjust(self, row: int, pod: Pod, by: int) -> None:
        _, before = self._pending_changes.get((row, pod.uid), (pod, 0))
        if before + by:
            self._pending_changes[row, pod.uid] = pod, before + by
        else:  # it was taken away and came back, and nobody has looked
            del self._pending_changes[row, pod.uid]
        self._all_changes.append((row, pod, by))

    def gang_members(self, members: GangMembers) -> HypotheticalGangMembers:
        """The members of gangs, with those that were laid and without those that were lifted."""
        found = self._members.get(members)
        if found is None:
            found = self._members[members] = HypotheticalGangMembers(members)
        found.catch_up(self._all_changes)
        return found

    def row_counts(self, counted: PodTally | ExistingPodTerm) -> RowCounts:
        self.apply_pending_changes()
        if counted not in self._copies and counted not in self._unchanged:
            moves = [
                (row, by)
                for row, kind, by in self._applied_changes
                for one in kind.counted_in
                if one is counted
            ]
            if moves:
                own = self._copies[counted] = counted.row_counts.copy()
                for row, by in moves:
                    own.adjust(row, by)
            else:
                self._unchanged.add(counted)
        return self._copies.get(counted, counted.row_counts)

    def apply_pending_changes(self) -> None:
        """Make what was laid known, so that its terms are found."""
        for (row, _), (pod, by) in self._pending_changes.items():
            kind = self._placed().pod_class(pod)
            self._applied_changes.append((row, kind, by))
            for counted in kind.counted_in:
                if counted in self._unchanged:
                    self._unchanged.remove(counted)
                    self._copies[counted] = counted.row_counts.copy()
                own = self._copies.get(counted)
                if own is not None:  # else it is asked for the first time later, and all moves count then
                    own.adjust(row, by)
        self._pending_changes.clear()
