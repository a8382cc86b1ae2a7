"""`ExistingTerms`: the affinity terms of placed pods, found by what they select.

A pod can have thousands of terms, and each of them could concern each pod that is decided about. So
a decision does nothing for each term of all pods, and the first one about pods with other labels a few additions:

- Terms whose topology key no node has had are left out: without a domain they change nothing.
- Pods that agree on all terms of one use and topology key share a group, which is counted as one.
- Terms are columns (`TermTable`), in which those that select a pod are found for all at once. What takes long for the terms
  of one large pod is computed once, on the thread that decodes it.
- The groups that select the pods of a namespace with certain labels are cached; of very many, their sums. Groups that come
  later are compared with a cached entry once, when it is next used.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

import numpy as np

from policysched.evaluate.columns.pod_changes import PodChanges
from policysched.evaluate.columns.selector_table import Labels
from policysched.evaluate.columns.summed_terms import SelectingGroup, SummedTerms
from policysched.evaluate.columns.term_groups import TermGroup
from policysched.evaluate.columns.term_table import PodsToSelect, TermTable
from policysched.model.affinity import PodAffinity, TermSet, Weight
from policysched.model.namespaces import Namespace

_CACHE_ITEMS_MAX = 32_768  # entries and the labels in their keys: a pod may have thousands
_NO_KEYS: Set[str] = frozenset()
_MANY_GROUPS = 4_096
_GROUPS_AT_ONCE = 2_048  # of those that are forgotten, a millisecond
_FEW_GROUPS = 64
"""Up to this many groups that select a pod are read one by one by each decision. Of more, their sums are read."""
_SUMS_MAX = 4_194_304  # numbers in all sums, of eight bytes

_PodsKey = tuple[str, tuple[tuple[str, str | None], ...]]
"""A namespace, and labels. A value that no term names is None."""


@dataclass(slots=True)
class _Selecting:
    """The groups that select some pods, of the first `known` groups. Very many groups are kept as `sums` alone."""

    pods: PodsToSelect
    known: int = 0
    weights: dict[TermGroup, Weight] = field(default_factory=dict)
    sums: SummedTerms | None = None
    groups: tuple[tuple[SelectingGroup, Weight], ...] = ()
    items: int = 0
    sums_size: int = 0


class ExistingTerms:
    """`selected_keys` are the label keys that terms select by (and some that former terms did), by the namespace of the pods
    that they may select (None: any): pods of one that agree on them are selected by the same terms. `version` changes with
    the terms."""

    def __init__(self, namespaces: Mapping[str, Namespace]) -> None:
        self.version = 0
        self.compared_terms = 0  # how often a term was compared with a pod, for tests
        self.selected_keys: dict[str | None, set[str]] = {}
        self._keys_versions: dict[str | None, int] = {}  # equal for equal keys
        self._last_keys_version = 0
        self._namespaces = namespaces
        self._table = TermTable()
        self._groups: dict[TermSet, TermGroup] = {}
        self._changes = PodChanges()
        self._compared: dict[tuple[str, Labels], _PodsKey] = {}
        self._compared_items = 0
        self._selecting: dict[_PodsKey, _Selecting] = {}
        self._selecting_items = 0
        self._sums_size = 0

    # ── queries ────────────────────────────────────────────────────────────────────────────────────────────────────

    def selecting(
        self, namespace: str, labels: Mapping[str, str]
    ) -> tuple[tuple[SelectingGroup, Weight], ...]:
        """The groups with terms that select such a pod, with the weight of those terms."""
        selecting = self._current(self._compared_labels(namespace, self._selected_values(namespace, labels)))
        sums = selecting.sums
        return selecting.groups if sums is None else sums.groups

    def _current(self, key: _PodsKey) -> _Selecting:
        selecting = self._selecting.get(key)
        if selecting is not None and not self._is_current(selecting):
            self._forget(key)
            selecting = None
        if selecting is None:
            # Of what the key has, so that a group selects the same pods when it is added and when it is subtracted.
            pods = PodsToSelect(key[0], self._labels_of(key[0]), dict(key[1]))
            selecting = _Selecting(pods, sums=self._sums_like(key, pods))
            self._selecting[key] = selecting
            self._catch_up(selecting)
            self._measure(key, selecting)
        elif self._catch_up(selecting):
            self._measure(key, selecting)
        return selecting

    def _sums_like(self, key: _PodsKey, pods: PodsToSelect) -> SummedTerms | None:
        """Of very many groups: the sums for pods with the same labels of which no term names the value, but for the few groups that
        name one. A tenant can create pods with ever new labels."""
        named = tuple([(name, value) for name, value in key[1] if value is not None])
        if not named or len(self._table.groups) <= _MANY_GROUPS:
            return None
        sums = self._current((key[0], tuple([(name, None) for name, _ in key[1]]))).sums
        if sums is None:
            return None
        like, compared = sums.for_labels(pods, named)
        self.compared_terms += compared
        return like

    def _compared_labels(self, namespace: str, labels: Labels) -> _PodsKey:
        """What terms are compared with. All values of a label that no term names are the same to terms, so pods that differ in
        such values alone share what selects them."""
        key = namespace, labels
        compared = self._compared.get(key)
        if compared is None:
            named = self._table.named(labels)
            self._compared_items += 1 + len(labels)
            if self._compared_items > _CACHE_ITEMS_MAX:
                self._forget_compared()
            shared = [label if label in named else (label[0], None) for label in labels]
            compared = self._compared[key] = namespace, tuple(shared)
        return compared

    def _forget_compared(self) -> None:
        self._compared.clear()
        self._compared_items = 0

    def _is_current(self, selecting: _Selecting) -> bool:
        """Whether it can be brought up to date."""
        labels, before = self._labels_of(selecting.pods.namespace), selecting.pods.namespace_labels
        return before is labels or before == labels

    def _labels_of(self, namespace: str) -> Mapping[str, str] | None:
        known = self._namespaces.get(namespace)
        return None if known is None else known.labels

    def _catch_up(self, selecting: _Selecting) -> bool:
        """Whether there was something to do."""
        table, sums, of_all = self._table, selecting.sums, None
        if sums is None:
            if selecting.known == len(table.groups):
                return False
            found, compared = table.weights(selecting.pods, selecting.known)
            self.compared_terms += compared
            of_all = None if selecting.known else found
            selecting.known = len(table.groups)
            if len(selecting.weights) + len(found.numbers) <= _FEW_GROUPS:
                each = zip(
                    found.numbers.tolist(), found.totals.tolist(), found.magnitudes.tolist(), strict=True
                )
                selecting.weights |= {table.groups[number]: Weight(*weight) for number, *weight in each}
                selecting.groups = tuple(selecting.weights.items())
                return True
            selecting.weights, selecting.groups = {}, ()
            sums = selecting.sums = SummedTerms(table, self._changes, selecting.pods)
        elif sums.is_current:
            return False
        self.compared_terms += sums.catch_up(of_all)
        return True

    def selected_label_values(self, namespace: str, labels: Mapping[str, str]) -> tuple[object, ...]:
        """Pods of one namespace with equal values are selected by the same terms, until a term that may select pods there
        selects by another key."""
        versions, values = self._keys_versions, self._selected_values(namespace, labels)
        return versions.get(None, 0), versions.get(namespace, 0), values

    def _selected_values(self, namespace: str, labels: Mapping[str, str]) -> Labels:
        anywhere, here = self.selected_keys.get(None, _NO_KEYS), self.selected_keys.get(namespace, _NO_KEYS)
        if not anywhere and not here:
            return ()
        return tuple(sorted([item for item in labels.items() if item[0] in here or item[0] in anywhere]))

    # ── changes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def groups_of(self, affinity: PodAffinity, topology_keys: Collection[str]) -> list[TermGroup]:
        """The groups of a pod's terms with these topology keys. New groups are added."""
        return [self._group(terms) for terms in affinity.term_sets if terms.topology_key in topology_keys]

    def counts_changed(self, groups: Iterable[TermGroup], row: int, delta: int) -> None:
        """The pods with the terms of the groups changed."""
        for group in groups:
            self._changes.add(group.number, row, delta)

    def sum_up_changes(self) -> None:
        """Drop changes that cancel each other. Not while an overlay is in use."""
        self._changes.sum_up_if_long()

    def drop_groups(self) -> None:
        """Drop the groups that no pod has any more, but for `forget_dropped`. Not while an overlay is in use."""
        kept = np.array([group.class_count for group in self._table.groups], np.bool_)
        counts = np.cumsum(kept)
        # Now, or each entry keeps the terms of pods that are gone.
        current = []
        for key, selecting in list(self._selecting.items()):
            if selecting.sums is not None:
                if selecting.sums.is_current:
                    current.append((key, selecting.sums))
                else:
                    self._forget(key)
                continue
            selecting.known = int(counts[selecting.known - 1]) if selecting.known else 0
            if any(group.dropped for group in selecting.weights):
                weights = {group: weight for group, weight in selecting.weights.items() if not group.dropped}
                selecting.weights, selecting.groups = weights, tuple(weights.items())
        self._changes.renumber(np.where(kept, counts - 1, -1).astype(np.int32))
        kinds_renumbered = self._table.keep(kept)
        for key, sums in current:
            if kinds_renumbered:
                self._forget(key)
            else:
                sums.groups_renumbered()
        self._forget_compared()
        self.version += 1

    def forget_dropped(self) -> Iterator[None]:
        """Forget the terms of groups that were dropped, and the label keys that only those selected by. In pieces, between which groups
        are added, and none is dropped."""
        for number, group in enumerate(list(self._groups.values()), 1):
            if group.dropped and self._groups.get(group.terms) is group:
                del self._groups[group.terms]
            if number % _GROUPS_AT_ONCE == 0:
                yield
        left: dict[str | None, set[str]] = {}
        for number, group in enumerate(self._table.groups, 1):  # and those that are added meanwhile
            for scope, keys in group.terms.selected_keys.items():
                left.setdefault(scope, set()).update(keys)
            if number % _GROUPS_AT_ONCE == 0:
                yield
        before, versions = self.selected_keys, self._keys_versions
        self.selected_keys, self._keys_versions = left, {}
        for scope, left_keys in left.items():
            if left_keys == before.get(scope):  # evaluations of pods stay valid
                self._keys_versions[scope] = versions[scope]
            else:
                self._last_keys_version = self._keys_versions[scope] = self._last_keys_version + 1
        self.version += 1

    def _forget(self, key: _PodsKey) -> None:
        selecting = self._selecting.pop(key)
        self._selecting_items -= selecting.items
        self._sums_size -= selecting.sums_size

    def _measure(self, key: _PodsKey, selecting: _Selecting) -> None:
        """Count what was added to the entry. Beyond the limits, forget the older half of the others."""
        items, sums = 1 + len(key[1]) + len(selecting.weights) // 4, selecting.sums
        sums_size = 0 if sums is None else sums.size
        self._selecting_items += items - selecting.items
        self._sums_size += sums_size - selecting.sums_size
        selecting.items, selecting.sums_size = items, sums_size
        while len(self._selecting) > 1 and (
            self._selecting_items > _CACHE_ITEMS_MAX or self._sums_size > _SUMS_MAX
        ):
            others = [other for other in self._selecting if other != key]
            for other in others[: len(others) // 2 + 1]:
                self._forget(other)

    def _group(self, terms: TermSet) -> TermGroup:
        group = self._groups.get(terms)
        if group is None or group.dropped:
            group = self._groups[terms] = self._table.add(terms)
            self._forget_compared()  # it may name further values
            self._select_by(terms)
            self.version += 1
        return group

    def _select_by(self, terms: TermSet) -> None:
        for scope, keys in terms.selected_keys.items():
            if not keys <= self.selected_keys.get(scope, _NO_KEYS):
                self.selected_keys.setdefault(scope, set()).update(keys)
                self._last_keys_version = self._keys_versions[scope] = self._last_keys_version + 1
