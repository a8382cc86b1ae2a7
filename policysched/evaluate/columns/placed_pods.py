"""`PlacedPods`: counts of placed pods by row, which topology spread and inter-pod affinity read.

There are two kinds of counts. A `MatchedPodCounts` counts the pods that some selectors select. An
`ExistingPodTerm` counts the pods that have a certain affinity term themselves. Pods that agree on
namespace, labels and terms are one class, and a class knows the counts that it adds to, so that a
placement costs a few additions. An overlay counts on copies of the few arrays that it changes.
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
"""Counts as float64, in which `numpy.bincount` adds; whole numbers stay exact."""

NamespaceScope = frozenset[str] | None
"""Names of namespaces; None: all."""

_SPARSE_ROWS_MAX = 32  # up to here rows are added one by one
_TALLIES_MAX = 512
_EMPTY_CLASSES_MAX = 256
_CACHE_ENTRIES_MAX = 4096


@dataclass(frozen=True, slots=True)
class PodMatcher:
    """Matches the pods that every one of `selectors` selects, each in its scope."""

    selectors: tuple[tuple[NamespaceScope, LabelSelector], ...]
    exclude_terminating: bool = False

    def matches(self, pod_class: "_PodClass") -> bool:
        if self.exclude_terminating and pod_class.terminating:
            return False
        return all(
            (scope is None or pod_class.namespace in scope) and selector.selects(pod_class.labels)
            for scope, selector in self.selectors
        )


class RowCounts:
    """A count per row: sparse, and from the first use on also an array."""

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
        """float64[capacity]. Read-only."""
        if self._array is None or len(self._array) != capacity:
            self._array = np.zeros(capacity)
            self._add_rows(self._array, 1)
        return self._array

    def add_to(self, amounts: CountArray, times: int, capacity: int) -> None:
        """Add the counts to `amounts`, which may be shorter than the capacity, not than the rows in use."""
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


class MatchedPodCounts:
    """How many of the matched pods are on each row."""

    __slots__ = ("matcher", "row_counts")

    def __init__(self, matcher: PodMatcher) -> None:
        self.matcher = matcher
        self.row_counts = RowCounts()


TermUse = Literal["rejects", "requires", "prefers"]


class ExistingPodTerm:
    """A term of placed pods, which reject (required anti-affinity), require or prefer (`weight`,
    negative for anti-affinity) the pods that it selects. `row_counts` counts the pods that have it."""

    __slots__ = ("row_counts", "term", "use", "weight")

    def __init__(self, use: TermUse, weight: int, term: PodAffinityTerm) -> None:
        self.use = use
        self.weight = weight
        self.term = term
        self.row_counts = RowCounts()


class _PodClass:
    """Placed pods that agree on everything counts depend on. `counted_in` repeats a term that the pods repeat."""

    __slots__ = ("affinity", "counted_in", "labels", "namespace", "rows", "terminating")

    def __init__(self, pod: Pod) -> None:
        self.namespace = pod.namespace
        self.labels = pod.labels
        self.terminating = pod.terminating
        self.affinity = pod.pod_affinity
        self.rows: dict[int, int] = {}
        self.counted_in: list[MatchedPodCounts | ExistingPodTerm] = []


class PlacedPods:
    """Counts over the rows of the columns. `terms_version` changes when an existing term appears or
    disappears. `selected_keys` are the label keys that existing terms select by (and some that former
    terms did): pods that agree on them are selected by the same terms."""

    def __init__(self, namespaces: Mapping[str, Namespace], capacity: int) -> None:
        self.capacity = capacity
        self.namespaces_version = 0
        self.terms_version = 0
        self.selected_keys: tuple[str, ...] = ()
        self._namespaces = namespaces
        self._pod_classes: dict[Hashable, _PodClass] = {}
        self._empty_classes = 0
        self._tallies: dict[PodMatcher, MatchedPodCounts] = {}
        self._terms: dict[tuple[TermUse, int, PodAffinityTerm], ExistingPodTerm] = {}
        self._resolved_scopes: dict[PodSelector, NamespaceScope] = {}
        self._selecting_terms: dict[Hashable, tuple[ExistingPodTerm, ...]] = {}

    # ── queries ────────────────────────────────────────────────────────────────────────────────────────────────────

    def matcher(self, selectors: Iterable[PodSelector]) -> PodMatcher | None:
        """Matches the pods that all selectors select; None where one selects nothing."""
        scoped = []
        for selector in selectors:
            if selector.label_selector is None:
                return None
            scoped.append((self.resolve_scope(selector), selector.label_selector))
        return PodMatcher(tuple(scoped))

    def resolve_scope(self, selector: PodSelector) -> NamespaceScope:
        """The namespaces that it selects now. An unknown namespace matches no selector with requirements."""
        namespace_selector = selector.namespace_selector
        if namespace_selector is None:
            return frozenset(selector.namespaces)
        if not namespace_selector.requirements:
            return None
        scope = self._resolved_scopes.get(selector)
        if scope is None:
            if len(self._resolved_scopes) >= _CACHE_ENTRIES_MAX:
                self._resolved_scopes.clear()
            matching = (
                name
                for name, namespace in self._namespaces.items()
                if namespace_selector.selects(namespace.labels)
            )
            scope = self._resolved_scopes[selector] = frozenset((*selector.namespaces, *matching))
        return scope

    def tally(self, matcher: PodMatcher) -> MatchedPodCounts:
        tally = self._tallies.get(matcher)
        if tally is None:
            tally = self._tallies[matcher] = MatchedPodCounts(matcher)
            for pod_class in self._pod_classes.values():
                if matcher.matches(pod_class):
                    pod_class.counted_in.append(tally)
                    for row, count in pod_class.rows.items():
                        tally.row_counts.adjust(row, count)
        return tally

    def terms_selecting(self, namespace: str, labels: Mapping[str, str]) -> tuple[ExistingPodTerm, ...]:
        """The existing terms that select a pod of this namespace with these labels."""
        cache_key = namespace, *[labels.get(key) for key in self.selected_keys]
        terms = self._selecting_terms.get(cache_key)
        if terms is None:
            if len(self._selecting_terms) > _CACHE_ENTRIES_MAX:
                self._selecting_terms.clear()
            terms = self._selecting_terms[cache_key] = tuple(
                existing
                for existing in self._terms.values()
                if self._selects(existing.term.pods, namespace, labels)
            )
        return terms

    def selected_label_values(self, pod: Pod) -> tuple[object, ...]:
        """Pods of one namespace with equal values are selected by the same terms, until a term selects
        by another key."""
        return self.selected_keys, *[pod.labels.get(key) for key in self.selected_keys]

    def _selects(self, selector: PodSelector, namespace: str, labels: Mapping[str, str]) -> bool:
        if selector.label_selector is None:
            return False
        scope = self.resolve_scope(selector)
        return (scope is None or namespace in scope) and selector.label_selector.selects(labels)

    # ── changes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def adjust(self, row: int, pod: Pod, by: int) -> None:
        """Add (1) or remove (-1) a pod on a row."""
        pod_class = self.pod_class(pod)
        count = pod_class.rows.get(row, 0) + by
        assert count >= 0, f"row {row} has {count} pods like {pod.full_name}"
        self._empty_classes -= not pod_class.rows
        if count:
            pod_class.rows[row] = count
        else:
            del pod_class.rows[row]
        self._empty_classes += not pod_class.rows
        for counted in pod_class.counted_in:
            counted.row_counts.adjust(row, by)

    def pod_class(self, pod: Pod) -> _PodClass:
        key = pod.namespace, tuple(sorted(pod.labels.items())), pod.terminating, pod.pod_affinity
        pod_class = self._pod_classes.get(key)
        if pod_class is None:
            pod_class = self._pod_classes[key] = _PodClass(pod)
            self._empty_classes += 1
            pod_class.counted_in += [
                tally for matcher, tally in self._tallies.items() if matcher.matches(pod_class)
            ]
            if pod.pod_affinity is not None:
                pod_class.counted_in += self._terms_of(pod.pod_affinity)
        return pod_class

    def namespaces_changed(self) -> None:
        """Resolve namespace selectors again."""
        self.namespaces_version += 1
        self._resolved_scopes.clear()
        self._selecting_terms.clear()

    def evict_unused(self) -> None:
        """Evict the oldest tallies beyond a limit, empty classes and the terms that only those had. Not
        while an overlay is in use."""
        if len(self._tallies) > _TALLIES_MAX:
            for matcher in list(self._tallies)[: len(self._tallies) // 2]:
                del self._tallies[matcher]
            kept = set(self._tallies.values())
            for pod_class in self._pod_classes.values():
                pod_class.counted_in = [
                    counted
                    for counted in pod_class.counted_in
                    if isinstance(counted, ExistingPodTerm) or counted in kept
                ]
        if self._empty_classes > _EMPTY_CLASSES_MAX + len(self._pod_classes) // 2:
            self._pod_classes = {
                key: pod_class for key, pod_class in self._pod_classes.items() if pod_class.rows
            }
            self._empty_classes = 0
            in_use = {counted for pod_class in self._pod_classes.values() for counted in pod_class.counted_in}
            self._terms = {key: existing for key, existing in self._terms.items() if existing in in_use}
            self.selected_keys = tuple(
                sorted({key for existing in self._terms.values() for key in _selected_keys(existing.term)})
            )
            self._terms_changed()

    def _terms_of(self, affinity: PodAffinity) -> Iterable[ExistingPodTerm]:
        for term in affinity.required_anti:
            yield self._existing_pod_term("rejects", 1, term)
        for term in affinity.required:
            yield self._existing_pod_term("requires", 1, term)
        for preference in affinity.preferred:
            yield self._existing_pod_term("prefers", preference.weight, preference.term)

    def _existing_pod_term(self, use: TermUse, weight: int, term: PodAffinityTerm) -> ExistingPodTerm:
        existing = self._terms.get((use, weight, term))
        if existing is None:
            existing = self._terms[use, weight, term] = ExistingPodTerm(use, weight, term)
            self.selected_keys = tuple(sorted(_selected_keys(term).union(self.selected_keys)))
            self._terms_changed()
        return existing

    def _terms_changed(self) -> None:
        self.terms_version += 1
        self._selecting_terms.clear()


def _selected_keys(term: PodAffinityTerm) -> set[str]:
    """The label keys that the term selects by."""
    selector = term.pods.label_selector
    return {requirement.key for requirement in selector.requirements} if selector else set()


class HypotheticalPlacedPods:
    """The counts on an overlay. Valid while the columns do not change."""

    def __init__(self, placed: Callable[[], PlacedPods]) -> None:
        self._placed = placed
        self._pending_changes: dict[tuple[int, PodUid], tuple[Pod, int]] = {}  # net changes not applied yet
        self._applied_changes: list[tuple[int, _PodClass, int]] = []
        self._copies: dict[MatchedPodCounts | ExistingPodTerm, RowCounts] = {}
        self._unchanged: set[MatchedPodCounts | ExistingPodTerm] = set()
        self._all_changes: list[tuple[int, Pod, int]] = []
        self._members: dict[GangMembers, HypotheticalGangMembers] = {}

    def adjust(self, row: int, pod: Pod, by: int) -> None:
        _, before = self._pending_changes.get((row, pod.uid), (pod, 0))
        if before + by:
            self._pending_changes[row, pod.uid] = pod, before + by
        else:  # removed and restored before it was applied
            del self._pending_changes[row, pod.uid]
        self._all_changes.append((row, pod, by))

    def gang_members(self, members: GangMembers) -> HypotheticalGangMembers:
        """The members of gangs on the overlay."""
        hypothetical = self._members.get(members)
        if hypothetical is None:
            hypothetical = self._members[members] = HypotheticalGangMembers(members)
        hypothetical.catch_up(self._all_changes)
        return hypothetical

    def row_counts(self, counted: MatchedPodCounts | ExistingPodTerm) -> RowCounts:
        self.apply_pending_changes()
        if counted not in self._copies and counted not in self._unchanged:
            changes = [
                (row, by)
                for row, pod_class, by in self._applied_changes
                for class_counted in pod_class.counted_in
                if class_counted is counted
            ]
            if changes:
                copy = self._copies[counted] = counted.row_counts.copy()
                for row, by in changes:
                    copy.adjust(row, by)
            else:
                self._unchanged.add(counted)
        return self._copies.get(counted, counted.row_counts)

    def apply_pending_changes(self) -> None:
        """Apply pending changes, which also registers the terms of added pods."""
        for (row, _), (pod, by) in self._pending_changes.items():
            pod_class = self._placed().pod_class(pod)
            self._applied_changes.append((row, pod_class, by))
            for counted in pod_class.counted_in:
                if counted in self._unchanged:
                    self._unchanged.remove(counted)
                    self._copies[counted] = counted.row_counts.copy()
                copy = self._copies.get(counted)
                if copy is not None:  # else `row_counts` applies all changes on first use
                    copy.adjust(row, by)
        self._pending_changes.clear()
