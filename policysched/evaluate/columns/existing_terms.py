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

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Set
from dataclasses import dataclass

from policysched.evaluate.columns.row_counts import RowCounts
from policysched.model.affinity import PodAffinity, PodSelector, TermSet, Weight
from policysched.model.selectors import RequiredLabel

_CACHE_ITEMS_MAX = 32_768  # entries and the labels in their keys: a pod may have thousands
_FILED_LABELS_MAX = 32  # a group with more is not filed under its labels, but looked into
_NO_KEYS: Set[str] = frozenset()


class TermGroup:
    """The placed pods that have the terms. `row_counts` counts them."""

    __slots__ = ("row_counts", "terms", "topology_key", "use")

    def __init__(self, terms: TermSet) -> None:
        self.terms = terms
        self.use = terms.use
        self.topology_key = terms.topology_key
        self.row_counts = RowCounts()


@dataclass(slots=True)
class _SelectingGroups:
    """The groups that select some pods, as of the first `position` groups."""

    weights: dict[TermGroup, Weight]
    position: int
    groups: tuple[tuple[TermGroup, Weight], ...] = ()


class ExistingTerms:
    """`selected_keys` are the label keys that terms select by (and some that former terms did), by the namespace of the pods
    that they may select (None: any): pods of one that agree on them are selected by the same terms. `version` changes with
    the terms."""

    def __init__(self, selects: Callable[[PodSelector, str, Mapping[str, str]], bool]) -> None:
        """`selects`: whether a selector selects a pod of a namespace with these labels."""
        self.version = 0
        self.matched_terms = 0  # how often a term was compared with a pod, for tests
        self.selected_keys: dict[str | None, set[str]] = {}
        self._keys_versions: dict[str | None, int] = {}  # equal for equal keys
        self._last_keys_version = 0
        self._selects = selects
        self._groups: dict[TermSet, TermGroup] = {}
        self._filed: list[TermGroup] = []
        self._filed_by_label: dict[RequiredLabel | None, list[TermGroup]] = {}
        self._looked_into: list[TermGroup] = []
        self._selecting: dict[Hashable, _SelectingGroups] = {}
        self._selecting_items = 0

    # ── queries ────────────────────────────────────────────────────────────────────────────────────────────────────

    def selecting(self, namespace: str, labels: Mapping[str, str]) -> tuple[tuple[TermGroup, Weight], ...]:
        """The groups with terms that select such a pod, with the weight of those terms."""
        key = namespace, self._selected_values(namespace, labels)
        selecting = self._selecting.get(key)
        if selecting is None:
            if self._selecting_items > _CACHE_ITEMS_MAX:
                self._forget_selecting()
            self._selecting_items += 1 + len(key[1])
            selecting = self._selecting[key] = _SelectingGroups({}, 0)
            self._add_matches(selecting, self._candidates(labels), namespace, labels)
        elif selecting.position < len(self._filed):
            self._add_matches(selecting, self._filed[selecting.position :], namespace, labels)
        return selecting.groups

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
        labels: Mapping[str, str],
    ) -> None:
        weights = selecting.weights
        for group in groups:
            weight: Weight | None = None
            for selector, term_weight in group.terms.may_select(labels):
                self.matched_terms += 1
                if self._selects(selector, namespace, labels):
                    weight = term_weight if weight is None else weight.plus(term_weight)
                    if group.use == "rejects":
                        break  # one term is enough
            if weight is not None:
                weights[group] = weight
        selecting.position = len(self._filed)
        selecting.groups = tuple(weights.items())

    # ── changes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def groups_of(self, affinity: PodAffinity, topology_keys: Collection[str]) -> list[TermGroup]:
        """The groups of a pod's terms with these topology keys. New groups are added."""
        return [self._group(terms) for terms in affinity.term_sets if terms.topology_key in topology_keys]

    def keep_only(self, groups: Collection[TermGroup]) -> None:
        """Drop the groups that no pod has any more."""
        self._groups = {key: group for key, group in self._groups.items() if group in groups}
        self._filed.clear()
        self._filed_by_label.clear()
        self._looked_into.clear()
        self._forget_selecting()
        keys, versions = self.selected_keys, self._keys_versions
        self.selected_keys, self._keys_versions = {}, {}
        for group in self._groups.values():
            self._file(group)
        # Where they are as before, evaluations of pods stay valid.
        self._keys_versions |= {
            scope: versions[scope] for scope, kept in self.selected_keys.items() if kept == keys.get(scope)
        }
        self.version += 1

    def namespaces_changed(self) -> None:
        """Selectors may select other namespaces now."""
        self._forget_selecting()

    def _forget_selecting(self) -> None:
        self._selecting.clear()
        self._selecting_items = 0

    def _group(self, terms: TermSet) -> TermGroup:
        group = self._groups.get(terms)
        if group is None:
            group = self._groups[terms] = TermGroup(terms)
            self._file(group)
            self.version += 1
        return group

    def _file(self, group: TermGroup) -> None:
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
