"""`PlacedPods`: counts of placed pods by row, which topology spread and inter-pod affinity read.

There are two kinds of counts. A `MatchedPodCounts` counts the pods that some selectors select. A
`TermGroup` counts the pods that have certain affinity terms themselves. Pods that agree on
namespace, labels and terms are one class, and a class knows the counts that it adds to, so that a
placement costs a few additions. An overlay counts on copies of the few arrays that it changes.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysched.evaluate.columns.existing_terms import ExistingTerms
from policysched.evaluate.columns.gang_members import GangMembers, HypotheticalGangMembers
from policysched.evaluate.columns.namespace_scopes import NamespaceTable
from policysched.evaluate.columns.pod_changes import Changes, PodChanges
from policysched.evaluate.columns.pod_classes import (
    NamespaceScope,
    PodClass,
    PodClassTable,
    PodMatcher,
)
from policysched.evaluate.columns.pod_totals import HypotheticalPodTotals, PodTotals
from policysched.evaluate.columns.row_counts import CountArray, RowCounts
from policysched.evaluate.columns.summed_terms import SelectingGroup, SummedGroup
from policysched.evaluate.columns.tallies import MatchedPodCounts, PodCount, Tallies
from policysched.model.affinity import PodAffinity, PodSelector, Weight
from policysched.model.identifiers import PodUid
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pods import Pod

_EMPTY_SIZE_MAX = 256  # of classes without pods (`PodClass.size`)
_CACHE_ENTRIES_MAX = 4096
_VALUES_PER_ENTRY = 16  # more of them count as further entries
_CLASSES_AT_ONCE = 1_024  # of those that are dropped or moved, a millisecond or two
_OVERLAY_SUMS_MAX = 512  # each distinct member of a gang has some


class PlacedPods:
    """Counts over the rows of the columns, and the `terms` of the pods."""

    def __init__(
        self, namespaces: Mapping[str, Namespace], capacity: int, topology_keys: Collection[str]
    ) -> None:
        """`topology_keys`: the label keys that some node has; the caller reports those that appear."""
        self.capacity = capacity
        self.namespaces_version = 0
        """Until it changes, selectors have the same matcher."""
        self.terms = ExistingTerms(namespaces)
        self.pods_version = 0
        """Changes with every pod that is added or removed."""
        self._namespaces = namespaces
        self._topology_keys = topology_keys
        self._uncounted_terms: dict[frozenset[str], list[tuple[PodClass, PodAffinity]]] = {}
        """Classes by the topology keys of their terms that no node has had since they were added."""
        self._pod_classes: dict[Hashable, PodClass] = {}
        self._table = PodClassTable()
        self._size = self._empty_size = 0  # of all classes, and of those without pods
        self._dropping: Iterator[None] | None = None
        self._tallies = Tallies(self._table)
        self._resolved_scopes: dict[PodSelector, NamespaceScope] = {}
        self._resolved_size = 0
        self._namespace_table: NamespaceTable | None = None
        self._table_version = 0

    # ── queries ────────────────────────────────────────────────────────────────────────────────────────────────────

    def matcher(self, selectors: Iterable[PodSelector], *, if_unknown: bool = False) -> PodMatcher | None:
        """Matches the pods that all selectors select; None where one selects nothing. `if_unknown`: see `PodMatcher`."""
        scoped = []
        for selector in selectors:
            if selector.label_selector is None:
                return None
            scoped.append((self.resolve_scope(selector), selector.label_selector))
        return PodMatcher(tuple(scoped), if_unknown=if_unknown)

    def resolve_scope(self, selector: PodSelector) -> NamespaceScope:
        """The namespaces that the selector selects now. An unknown namespace matches no selector with requirements."""
        namespace_selector = selector.namespace_selector
        if namespace_selector is None:
            return frozenset(selector.namespaces)
        if not namespace_selector.requirements:
            return None
        scope = self._resolved_scopes.get(selector)
        if scope is None:
            scope = self._selectable_namespaces().select(namespace_selector, selector.namespaces)
            values = sum(len(requirement.values) + 1 for requirement in namespace_selector.requirements)
            self._resolved_size += scope.size + values // _VALUES_PER_ENTRY
            if self._resolved_size > _CACHE_ENTRIES_MAX:
                self._forget_scopes()
            self._resolved_scopes[selector] = scope
        return scope

    def _selectable_namespaces(self) -> NamespaceTable:
        """Brought up to date, for the first selector after a change."""
        table = self._namespace_table
        if table is None or table.is_worn:
            table = self._namespace_table = NamespaceTable(self._namespaces)
        elif self._table_version != self.namespaces_version:
            table.update(self._namespaces)
        self._table_version = self.namespaces_version
        return table

    def tally(self, matcher: PodMatcher) -> MatchedPodCounts:
        return self._tallies.get(matcher)

    def matching(self, matcher: PodMatcher, changes: Changes) -> tuple[NDArray[Any], NDArray[Any]]:
        """See `Tallies`."""
        return self._tallies.matching(matcher, changes)

    def weights_by_class(
        self, weighted: Iterable[tuple[PodSelector, int]], *, if_unknown: bool
    ) -> CountArray:
        """float64 by index of the class: the sum of the weights of the selectors that select its pods. `if_unknown`: see
        `PodMatcher`."""
        weights = np.zeros(len(self._table.classes))
        for selector, weight in weighted:
            if selector.label_selector is not None:
                scope = self.resolve_scope(selector)
                selected = self._table.selected(scope, selector.label_selector, if_unknown=if_unknown)
                weights += selected * float(weight)
        return weights

    def weights_by_row(self, weights_by_class: CountArray) -> CountArray:
        """float64[capacity]: the sum over the pods of each row of the weights of their classes."""
        return self._tallies.weights_by_row(weights_by_class, self.capacity)

    def terms_selecting(
        self, namespace: str, labels: Mapping[str, str]
    ) -> tuple[tuple[SelectingGroup, Weight], ...]:
        """The groups of existing terms that select a pod of this namespace with these labels."""
        return self.terms.selecting(namespace, labels)

    def selected_label_values(self, pod: Pod) -> tuple[object, ...]:
        """See `ExistingTerms`."""
        return self.terms.selected_label_values(pod.namespace, pod.labels)

    # ── changes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def adjust(self, row: int, pod: Pod, delta: int) -> None:
        """Add (1) or remove (-1) a pod on a row."""
        self.pods_version += 1
        pod_class = self.pod_class(pod)
        count = pod_class.rows.get(row, 0) + delta
        assert count >= 0, f"row {row} has {count} pods like {pod.full_name}"
        if not pod_class.rows:
            self._empty_size -= pod_class.size
        if count:
            pod_class.rows[row] = count
        else:
            del pod_class.rows[row]
        if not pod_class.rows:
            self._empty_size += pod_class.size
        self._tallies.changes.add(pod_class.index, row, delta)
        for counted in pod_class.counted_in:
            counted.row_counts.adjust(row, delta)
        if pod_class.affinity is not None:
            self.terms.counts_changed(list(pod_class.counted_in), row, delta)

    def pod_class(self, pod: Pod) -> PodClass:
        labels = tuple(sorted(pod.labels.items())), "labels" in pod.dropped
        key = pod.namespace, labels, pod.terminating, pod.pod_affinity
        pod_class = self._pod_classes.get(key)
        if pod_class is None:
            pod_class = self._pod_classes[key] = PodClass(pod)
            self._table.add(pod_class)
            self._size += pod_class.size
            self._empty_size += pod_class.size
            if pod_class.affinity is not None:
                self._count_terms(pod_class, pod_class.affinity)
        return pod_class

    def _count_terms(self, pod_class: PodClass, affinity: PodAffinity) -> None:
        for group in self.terms.groups_of(affinity, self._topology_keys):
            pod_class.count_in(group)
        keys = {terms.topology_key for terms in affinity.term_sets}
        uncounted = frozenset([key for key in keys if key not in self._topology_keys])
        if uncounted:
            self._uncounted_terms.setdefault(uncounted, []).append((pod_class, affinity))

    def topology_keys_appeared(self, keys: Collection[str]) -> None:
        """The first nodes with these labels appeared: terms with these topology keys count from now on. A kubelet can add and
        remove thousands of labels of its node, so a class is visited once for each key."""
        appeared = frozenset(keys)
        for uncounted in [each for each in self._uncounted_terms if not each.isdisjoint(appeared)]:
            classes, new = self._uncounted_terms.pop(uncounted), uncounted & appeared
            for pod_class, affinity in classes:
                if pod_class.dropped:
                    continue
                for group in self.terms.groups_of(affinity, new):
                    pod_class.count_in(group)
                    for row, count in pod_class.rows.items():
                        self.terms.counts_changed([group], row, count)
            if left := uncounted - appeared:
                self._uncounted_terms.setdefault(left, []).extend(classes)

    def namespaces_changed(self) -> None:
        """Resolve namespace selectors again."""
        self.namespaces_version += 1
        self._forget_scopes()

    def _forget_scopes(self) -> None:
        self._resolved_scopes.clear()
        self._resolved_size = 0

    def evict_unused(self) -> None:
        """Evict the oldest tallies beyond the limits, empty classes and the terms that only those had. Not
        while an overlay is in use. Tenants can have tens of thousands of classes: what those leave is dropped in several calls."""
        self.terms.sum_up_changes()
        self._tallies.evict_unused()
        if self._dropping is None and self._empty_size > _EMPTY_SIZE_MAX + self._size // 2:
            self._dropping = self._drop_empty()
        elif self._dropping is not None and next(self._dropping, True):
            self._dropping = None

    def _drop_empty(self) -> Iterator[None]:
        """In pieces, between which pods come and go. A class that is dropped has no pod any more: one like it gets another class."""
        for number, (key, pod_class) in enumerate(list(self._pod_classes.items()), 1):
            if not pod_class.rows:
                del self._pod_classes[key]
                pod_class.drop()
                self._size -= pod_class.size
                self._empty_size -= pod_class.size
            if number % _CLASSES_AT_ONCE == 0:
                yield
        self._uncounted_terms = {
            keys: left
            for keys, classes in self._uncounted_terms.items()
            if (left := [each for each in classes if not each[0].dropped])
        }
        yield
        table = PodClassTable()
        for number, pod_class in enumerate(list(self._pod_classes.values()), 1):
            table.append(pod_class)
            if number % _CLASSES_AT_ONCE == 0:
                yield
        for pod_class in islice(self._pod_classes.values(), len(table.classes), None):  # came meanwhile
            table.append(pod_class)
        self._tallies.replace_table(table)
        self._table = table
        yield
        self.terms.drop_groups()
        yield
        yield from self.terms.forget_dropped()


class HypotheticalPlacedPods:
    """The counts on an overlay. Valid while the columns do not change, or after `follow`."""

    def __init__(self, placed: Callable[[], PlacedPods]) -> None:
        self._placed = placed
        self._pending_changes: dict[tuple[int, PodUid], tuple[Pod, int]] = {}  # net changes not applied yet
        self._class_changes, self._term_changes = PodChanges(), PodChanges()
        self._counts: dict[PodCount, tuple[int, RowCounts]] = {}
        """The counts with the changes up to a position. Only counts that are read catch up: a tenant can have hundreds of tallies
        that match its pods, and hundreds of nominated pods, which are on the overlays of others."""
        self._sums: dict[PodCount, tuple[int, RowCounts]] = {}  # of `SummedGroup`
        self._all_changes: list[tuple[int, Pod, int]] = []
        self._dropped_count = 0  # of changes that cancelled out
        self._is_outdated = False  # all changes are to be counted again
        self._members: dict[GangMembers, HypotheticalGangMembers] = {}
        self._totals: dict[PodTotals, HypotheticalPodTotals] = {}

    @property
    def version(self) -> int:
        """Changes with every pod that is added to the overlay or removed."""
        return self._dropped_count + len(self._all_changes)

    def follow(self) -> None:
        """The columns changed. The changes of the overlay are counted again at the next read: there may be thousands, and often
        there is none."""
        self._is_outdated = True

    def _catch_up(self) -> None:
        """Count the changes again, without pods that were removed and restored, which may be gone by now."""
        if not self._is_outdated:
            return
        self._is_outdated = False
        self._class_changes, self._term_changes = PodChanges(), PodChanges()
        self._counts.clear()
        self._sums.clear()
        self._members.clear()
        self._totals.clear()
        self._pending_changes.clear()
        changes, self._all_changes, version = self._all_changes, [], self.version
        for change in changes:
            self.adjust(*change)
        self._all_changes = [(row, pod, delta) for (row, _), (pod, delta) in self._pending_changes.items()]
        self._dropped_count = version - len(self._all_changes)

    def adjust(self, row: int, pod: Pod, delta: int) -> None:
        self._all_changes.append((row, pod, delta))
        if self._is_outdated:
            return
        _, before = self._pending_changes.get((row, pod.uid), (pod, 0))
        if before + delta:
            self._pending_changes[row, pod.uid] = pod, before + delta
        else:  # removed and restored before it was applied
            del self._pending_changes[row, pod.uid]

    def gang_members(self, members: GangMembers) -> HypotheticalGangMembers:
        """The members of gangs on the overlay."""
        self._catch_up()
        hypothetical = self._members.get(members)
        if hypothetical is None:
            hypothetical = self._members[members] = HypotheticalGangMembers(members)
        hypothetical.catch_up(self._all_changes)
        return hypothetical

    def pod_totals(self, totals: PodTotals, nodes: Sequence[Node | None]) -> HypotheticalPodTotals:
        """The totals on the overlay. `nodes`: by row."""
        self._catch_up()
        hypothetical = self._totals.get(totals)
        if hypothetical is None:
            hypothetical = self._totals[totals] = HypotheticalPodTotals(totals)
        hypothetical.catch_up(self._all_changes, nodes)
        return hypothetical

    def row_counts(self, counted: PodCount) -> RowCounts:
        self.apply_pending_changes()
        log = self._class_changes if isinstance(counted, MatchedPodCounts) else self._term_changes
        kept = self._sums if isinstance(counted, SummedGroup) else self._counts
        base = counted.row_counts
        position, counts = kept.get(counted, (0, base))
        if position == log.end:
            return counts
        changes = log.since(position)
        assert changes is not None, "changes of an overlay were summed up"
        rows, amounts = self._counted_changes(counted, changes)
        if len(rows):
            counts = counts.copy() if counts is base else counts
            counts.add(rows, amounts)
        if kept is self._sums and counted not in kept and len(kept) >= _OVERLAY_SUMS_MAX:
            kept.clear()
        kept[counted] = log.end, counts
        return counts

    def _counted_changes(self, counted: PodCount, changes: Changes) -> tuple[NDArray[Any], NDArray[Any]]:
        """The rows and amounts of those changes that `counted` counts."""
        if isinstance(counted, MatchedPodCounts):
            return self._placed().matching(counted.matcher, changes)
        if isinstance(counted, SummedGroup):
            return counted.amounts(changes)
        numbers, rows, deltas = changes
        return rows[numbers == counted.number], deltas[numbers == counted.number]

    def add_weights(self, by_row: CountArray, weights_by_class: CountArray) -> None:
        """Change the result of `PlacedPods.weights_by_row` to that of the overlay."""
        self._catch_up()
        indexes, rows, deltas = self._class_changes.all()
        np.add.at(by_row, rows, weights_by_class[indexes] * deltas)

    def apply_pending_changes(self) -> None:
        """Apply pending changes, which also registers the terms of added pods."""
        self._catch_up()
        for (row, _), (pod, delta) in self._pending_changes.items():
            pod_class = self._placed().pod_class(pod)
            self._class_changes.add(pod_class.index, row, delta)
            for group in pod_class.counted_in:
                self._term_changes.add(group.number, row, delta)
        self._pending_changes.clear()
