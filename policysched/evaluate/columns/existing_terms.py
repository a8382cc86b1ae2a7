"""`ExistingTerms`: the affinity terms of placed pods, found by what they select.

A pod can have thousands of terms, and each of them could concern each pod that is decided about. So
nothing here is linear in the terms of all pods for each decision, nor in those of a pod that is placed:

- Terms whose topology key no node has had are left out: without a domain they change nothing.
- Pods that agree on all terms of one use and topology key share a group, which is counted as one.
- Each `TermSet` files its terms under a label that they require; that is computed once, for large pods
  on the thread that decodes them. Groups with few such labels are filed under them in turn, so that a
  pod meets those that may select it; it looks into each of the others.
- The groups that select the pods of a namespace with certain labels are cached. Groups that come
  later are matched with a cached entry once, when it is next used.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from policysched.evaluate.columns.term_groups import SelectingGroup, SummedTerms, TermGroup
from policysched.model.affinity import NAMED_VALUES_MAX, PodAffinity, PodSelector, TermSet, Weight
from policysched.model.namespaces import Namespace
from policysched.model.selectors import RequiredLabel

_CACHE_ITEMS_MAX = 32_768  # entries and the labels in their keys: a pod may have thousands
_FILED_LABELS_MAX = 32  # a group with more is not filed under its labels, but looked into
_NO_KEYS: Set[str] = frozenset()
_SelectingKey = tuple[str, tuple[tuple[str, str], ...]]


_NOT_NAMED = "\0"  # no value of a label
_FEW_GROUPS = 64
"""So many that select a pod are read one by one, by each decision; of more, their sums."""
_SUMS_MAX = 4_194_304  # numbers in all sums, of eight bytes
_CHANGES_MAX = 2_048
"""So many changes are applied to sums; after more, they are made anew."""
_CHANGES_SIZE_MAX = (
    131_072  # of their terms (`TermSet.size`): they may be of pods that are gone, of a megabyte each
)
_FEW_CHANGES = 8  # whatever their size


@dataclass(slots=True)
class _SelectingGroups:
    """The groups that select some pods, as of the first groups and changes up to those numbers. `sums`: of very many groups,
    whose `weights` are not kept. The verdict of selectors of namespaces is for these labels of the namespace."""

    namespace_labels: Mapping[str, str] | None
    labels: Mapping[str, str]
    weights: dict[TermGroup, Weight]
    group_number: int = 0
    change_number: int = 0
    groups: tuple[tuple[SelectingGroup, Weight], ...] = ()
    sums: SummedTerms | None = None
    items: int = 0
    sums_size: int = 0


class ExistingTerms:
    """`selected_keys` are the label keys that terms select by (and some that former terms did), by the namespace of the pods
    that they may select (None: any): pods of one that agree on them are selected by the same terms. `version` changes with
    the terms."""

    def __init__(
        self,
        selects: Callable[[PodSelector, str, Mapping[str, str]], bool],
        namespaces: Mapping[str, Namespace],
    ) -> None:
        """`selects`: whether a selector selects a pod of a namespace with these labels, as the namespace is now."""
        self.version = 0
        self.matched_terms = 0  # how often a term was compared with a pod, for tests
        self.selected_keys: dict[str | None, set[str]] = {}
        self._keys_versions: dict[str | None, int] = {}  # equal for equal keys
        self._last_keys_version = 0
        self._named_values: set[int] = set()
        """The hashes of labels whose values selectors name."""
        self._selects = selects
        self._namespaces = namespaces
        self._groups: dict[TermSet, TermGroup] = {}
        self._filed: list[TermGroup] = []
        self._filed_by_label: dict[RequiredLabel | None, list[TermGroup]] = {}
        self._looked_into: list[TermGroup] = []
        self._selecting: dict[_SelectingKey, _SelectingGroups] = {}
        self._selecting_items = 0
        self._sums_size = 0
        self._last_group_number = 0
        self._changes: list[tuple[Sequence[TermGroup], int, int, int]] = []
        """The last changes of counts: of which groups, the row, how many pods more, and the size of the terms."""
        self._changes_size = 0
        self._first_change_number = 0

    # ── queries ────────────────────────────────────────────────────────────────────────────────────────────────────

    def selecting(
        self, namespace: str, labels: Mapping[str, str]
    ) -> tuple[tuple[SelectingGroup, Weight], ...]:
        """The groups with terms that select such a pod, with the weight of those terms."""
        key = namespace, self._compared_values(namespace, labels)
        selecting = self._selecting.get(key)
        if selecting is not None and not self._is_current(selecting, namespace):
            self._forget(key)
            selecting = None
        if selecting is None:
            # Of what the key has, so that a group selects the same pods when it is added and when it is subtracted.
            compared = dict(key[1])
            selecting = self._selecting[key] = _SelectingGroups(self._labels_of(namespace), compared, {})
            self._add_matches(selecting, self._candidates(compared), namespace)
            self._measure(key, selecting)
        elif self._catch_up(selecting, namespace):
            self._measure(key, selecting)
        return selecting.groups

    def _compared_values(self, namespace: str, labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """The labels that selectors are compared with. A value that none of them names differs from all that one does: pods
        with ever other values of a label that NotIn requires something of share what selects them."""
        named = self._named_values
        return tuple(
            [
                (key, value if hash((key, value)) % NAMED_VALUES_MAX in named else _NOT_NAMED)
                for key, value in self._selected_values(namespace, labels)
            ]
        )

    def _is_current(self, selecting: _SelectingGroups, namespace: str) -> bool:
        """Whether it can be brought up to date."""
        labels = self._labels_of(namespace)
        if selecting.namespace_labels is not labels and selecting.namespace_labels != labels:
            return False
        if selecting.sums is None:
            return True
        return selecting.change_number >= self._first_change_number and len(self._filed) > _FEW_GROUPS

    def _labels_of(self, namespace: str) -> Mapping[str, str] | None:
        known = self._namespaces.get(namespace)
        return None if known is None else known.labels

    def _catch_up(self, selecting: _SelectingGroups, namespace: str) -> bool:
        """Whether there was something to do."""
        sums = selecting.sums
        if sums is None:
            if selecting.group_number == self._last_group_number:
                return False
            self._add_matches(selecting, self._filed_after(selecting.group_number), namespace)
            return True
        changes = self._changes[selecting.change_number - self._first_change_number :]
        if not changes and selecting.group_number == self._last_group_number:
            return False
        for group in self._filed_after(selecting.group_number):
            sums.register(group)
        for groups, row, delta, _ in changes:
            for group in groups:
                sums.adjust(group, row, delta)
        self._summed(selecting, sums)
        return True

    def _filed_after(self, number: int) -> Sequence[TermGroup]:
        if number >= self._last_group_number:
            return ()
        return self._filed[bisect_right(self._filed, number, key=lambda group: group.number) :]

    def _summed(self, selecting: _SelectingGroups, sums: SummedTerms) -> None:
        sums.forget_amounts()
        selecting.groups = sums.groups
        selecting.group_number = self._last_group_number
        selecting.change_number = self._first_change_number + len(self._changes)

    def selected_label_values(self, namespace: str, labels: Mapping[str, str]) -> tuple[object, ...]:
        """Pods of one namespace with equal values are selected by the same terms, until a term that may select pods there
        selects by another key."""
        versions, values = self._keys_versions, self._selected_values(namespace, labels)
        return versions.get(None, 0), versions.get(namespace, 0), values

    def _selected_values(self, namespace: str, labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        anywhere, here = self.selected_keys.get(None, _NO_KEYS), self.selected_keys.get(namespace, _NO_KEYS)
        if not anywhere and not here:
            return ()
        return tuple(sorted([item for item in labels.items() if item[0] in here or item[0] in anywhere]))

    def _candidates(self, labels: Mapping[str, str]) -> Iterable[TermGroup]:
        """Each once, although it may be filed under several of the labels."""
        filed = self._filed_by_label
        candidates = [*self._looked_into, *filed.get(None, ())]
        for key, value in labels.items():
            candidates += filed.get((key, value), ())
            candidates += filed.get((key, None), ())
        return dict.fromkeys(candidates)

    def _add_matches(
        self,
        selecting: _SelectingGroups,
        groups: Iterable[TermGroup],
        namespace: str,
    ) -> None:
        weights, labels, sums = selecting.weights, selecting.labels, None
        for group in groups:
            weight = self._weight(group, namespace, labels)
            if weight is None:
                continue
            if sums is not None:
                sums.add_group(group, weight)
                continue
            weights[group] = weight
            if len(weights) > _FEW_GROUPS:
                sums = SummedTerms(lambda group: self._weight(group, namespace, labels))
                for each in weights.items():
                    sums.add_group(*each)
                weights.clear()
        selecting.group_number = self._last_group_number
        if sums is None:
            selecting.groups = tuple(weights.items())
        else:
            selecting.sums = sums
            self._summed(selecting, sums)

    def _weight(self, group: TermGroup, namespace: str, labels: Mapping[str, str]) -> Weight | None:
        """Of its terms that select such a pod; None: no term does."""
        weight: Weight | None = None
        for selector, term_weight in group.terms.may_select(labels):
            self.matched_terms += 1
            if self._selects(selector, namespace, labels):
                weight = term_weight if weight is None else weight.plus(term_weight)
                if group.use == "rejects":
                    break  # one term is enough
        return weight

    # ── changes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def groups_of(self, affinity: PodAffinity, topology_keys: Collection[str]) -> list[TermGroup]:
        """The groups of a pod's terms with these topology keys. New groups are added."""
        return [self._group(terms) for terms in affinity.term_sets if terms.topology_key in topology_keys]

    def counts_changed(self, groups: Sequence[TermGroup], row: int, delta: int) -> None:
        """The pods of a class with the terms of the groups changed."""
        size = sum([group.terms.size for group in groups])
        self._changes.append((groups, row, delta, size))
        self._changes_size += size
        while len(self._changes) > _CHANGES_MAX or (
            self._changes_size > _CHANGES_SIZE_MAX and len(self._changes) > _FEW_CHANGES
        ):
            half = len(self._changes) // 2
            self._changes_size -= sum([change[3] for change in self._changes[:half]])
            del self._changes[:half]
            self._first_change_number += half

    def sum_again(self) -> None:
        """Groups have pods that came earlier."""
        self._first_change_number += len(self._changes) + 1
        self._changes.clear()
        self._changes_size = 0

    def keep_only(self, groups: Collection[TermGroup]) -> None:
        """Drop the groups that no pod has any more."""
        for group in self._filed:
            group.dropped = group not in groups
        for selecting in self._selecting.values():  # now, or each keeps the terms of pods that are gone
            if any(group.dropped for group in selecting.weights):
                weights = {group: weight for group, weight in selecting.weights.items() if not group.dropped}
                selecting.weights, selecting.groups = weights, tuple(weights.items())
        kept = [group for group in self._filed if not group.dropped]
        self._groups = {group.terms: group for group in kept}
        self._filed.clear()
        self._filed_by_label.clear()
        self._looked_into.clear()
        keys, versions = self.selected_keys, self._keys_versions
        self.selected_keys, self._keys_versions = {}, {}
        self._named_values.clear()
        for group in kept:
            self._file(group)
        # Where they are as before, evaluations of pods stay valid.
        self._keys_versions |= {
            scope: versions[scope] for scope, left in self.selected_keys.items() if left == keys.get(scope)
        }
        self.version += 1

    def _forget(self, key: _SelectingKey) -> None:
        selecting = self._selecting.pop(key)
        self._selecting_items -= selecting.items
        self._sums_size -= selecting.sums_size

    def _measure(self, key: _SelectingKey, selecting: _SelectingGroups) -> None:
        """What was added to the entry counts. Beyond the limits no other one is kept."""
        items, sums = 1 + len(key[1]) + len(selecting.weights) // 4, selecting.sums
        sums_size = 0 if sums is None else sums.size
        self._selecting_items += items - selecting.items
        self._sums_size += sums_size - selecting.sums_size
        selecting.items, selecting.sums_size = items, sums_size
        if self._selecting_items > _CACHE_ITEMS_MAX or self._sums_size > _SUMS_MAX:
            self._selecting = {key: selecting}
            self._selecting_items, self._sums_size = items, sums_size

    def _group(self, terms: TermSet) -> TermGroup:
        group = self._groups.get(terms)
        if group is None:
            self._last_group_number += 1
            group = self._groups[terms] = TermGroup(terms, self._last_group_number)
            self._file(group)
            self.version += 1
        return group

    def _file(self, group: TermGroup) -> None:
        self._named_values.update(group.terms.named_values)
        self._filed.append(group)
        if len(group.terms.by_label) > _FILED_LABELS_MAX:
            self._looked_into.append(group)
        else:
            for label in group.terms.by_label:
                self._filed_by_label.setdefault(label, []).append(group)
        for scope, keys in group.terms.selected_keys.items():
            if not keys <= self.selected_keys.get(scope, _NO_KEYS):
                self.selected_keys.setdefault(scope, set()).update(keys)
                self._last_keys_version = self._keys_versions[scope] = self._last_keys_version + 1
