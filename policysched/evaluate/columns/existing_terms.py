"""`ExistingTerms`: the affinity terms of placed pods, found by what they select.

A pod can have thousands of terms, and each of them could concern each pod that is decided about. So
nothing here is linear in the terms of all pods for each decision:

- Terms whose topology key no node has are left out: without a domain they change nothing.
- Pods that agree on all terms of one use and topology key share a group, which is counted as one.
- Terms are filed under a label that they require, so that a pod meets those that may select it.
- The groups that select the pods of a namespace with certain labels are cached. Terms that come
  later are matched with a cached entry once, when it is next used.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from policysched.evaluate.columns.row_counts import RowCounts
from policysched.model.affinity import PodAffinity, PodSelector
from policysched.model.selectors import LabelSelector

_CACHE_ENTRIES_MAX = 4096
_FILED_VALUES_MAX = 8  # an In requirement with more values is filed under its key alone

TermUse = Literal["rejects", "requires", "prefers"]
LabelIndexKey = tuple[str, str | None]
"""A label key with its value; None: any value."""


class TermGroup:
    """The terms of one use and topology key that some placed pods have. They reject (required
    anti-affinity), require or prefer the pods that they select. `row_counts` counts the pods that
    have them."""

    __slots__ = ("row_counts", "selectors", "topology_key", "use")

    def __init__(self, use: TermUse, topology_key: str, selectors: Mapping[PodSelector, "Weight"]) -> None:
        self.use = use
        self.topology_key = topology_key
        self.selectors = selectors
        self.row_counts = RowCounts()


class Weight(NamedTuple):
    """The sum of weights of terms (negative for anti-affinity), and of their absolute values. A
    required term has weight 1."""

    total: int
    magnitude: int

    def plus(self, other: "Weight") -> "Weight":
        return Weight(self.total + other.total, self.magnitude + other.magnitude)


@dataclass(frozen=True, slots=True)
class _FiledTerm:
    group: TermGroup
    selector: PodSelector
    weight: Weight


@dataclass(slots=True)
class _SelectingGroups:
    """The groups that select some pods, as of the first `position` filed terms."""

    weights: dict[TermGroup, Weight]
    position: int
    groups: tuple[tuple[TermGroup, Weight], ...] = ()


class ExistingTerms:
    """`selected_keys` are the label keys that terms select by (and some that former terms did): pods
    that agree on them are selected by the same terms. `version` changes with the terms."""

    def __init__(
        self, topology_keys: Collection[str], selects: Callable[[PodSelector, str, Mapping[str, str]], bool]
    ) -> None:
        """`topology_keys`: the label keys that some node has; it changes. `selects`: whether a
        selector selects a pod of a namespace with these labels."""
        self.version = 0
        self.matched_terms = 0  # how often a term was compared with a pod, for tests
        self.selected_keys: set[str] = set()
        self._selected_keys_version = 0
        self._topology_keys = topology_keys
        self._selects = selects
        self._groups: dict[Hashable, TermGroup] = {}
        self._filed: list[_FiledTerm] = []
        self._filed_by_label: dict[LabelIndexKey | None, list[_FiledTerm]] = {}
        self._selecting: dict[Hashable, _SelectingGroups] = {}

    # ── queries ────────────────────────────────────────────────────────────────────────────────────────────────────

    def selecting(self, namespace: str, labels: Mapping[str, str]) -> tuple[tuple[TermGroup, Weight], ...]:
        """The groups with terms that select such a pod, with the weight of those terms."""
        key = namespace, self._selected_values(labels)
        selecting = self._selecting.get(key)
        if selecting is None:
            if len(self._selecting) > _CACHE_ENTRIES_MAX:
                self._selecting.clear()
            selecting = self._selecting[key] = _SelectingGroups({}, 0)
            self._add_matches(selecting, self._candidates(labels), namespace, labels)
        elif selecting.position < len(self._filed):
            self._add_matches(selecting, self._filed[selecting.position :], namespace, labels)
        return selecting.groups

    def selected_label_values(self, labels: Mapping[str, str]) -> tuple[object, ...]:
        """Pods of one namespace with equal values are selected by the same terms, until a term
        selects by another key."""
        return self._selected_keys_version, self._selected_values(labels)

    def _selected_values(self, labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        keys = self.selected_keys
        return tuple(sorted([item for item in labels.items() if item[0] in keys])) if keys else ()

    def _candidates(self, labels: Mapping[str, str]) -> Iterator[_FiledTerm]:
        filed = self._filed_by_label
        yield from filed.get(None, ())
        for key, value in labels.items():
            yield from filed.get((key, value), ())
            yield from filed.get((key, None), ())

    def _add_matches(
        self,
        selecting: _SelectingGroups,
        terms: Iterable[_FiledTerm],
        namespace: str,
        labels: Mapping[str, str],
    ) -> None:
        weights = selecting.weights
        for term in terms:
            group_weight = weights.get(term.group)
            if group_weight is not None and term.group.use == "rejects":
                continue  # one term is enough
            self.matched_terms += 1
            if self._selects(term.selector, namespace, labels):
                weights[term.group] = term.weight if group_weight is None else group_weight.plus(term.weight)
        selecting.position = len(self._filed)
        selecting.groups = tuple(weights.items())

    # ── changes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def groups_of(
        self, affinity: PodAffinity, topology_keys: Collection[str] | None = None
    ) -> list[TermGroup]:
        """The groups of a pod's terms with these topology keys (None: those that some node has). New
        groups are added."""
        keys = self._topology_keys if topology_keys is None else topology_keys
        weights: dict[tuple[TermUse, str], dict[PodSelector, Weight]] = {}
        for use, weight, topology_key, selector in _terms_of(affinity):
            if topology_key in keys:
                of_group = weights.setdefault((use, topology_key), {})
                counter = of_group.get(selector)
                of_group[selector] = weight if counter is None else counter.plus(weight)
        return [self._group(use, key, selectors) for (use, key), selectors in weights.items()]

    def keep_only(self, groups: Collection[TermGroup]) -> None:
        """Drop the groups that no pod has any more."""
        self._groups = {key: group for key, group in self._groups.items() if group in groups}
        self._filed.clear()
        self._filed_by_label.clear()
        self._selecting.clear()
        self.selected_keys = set()
        for group in self._groups.values():
            self._file(group)
        self._selected_keys_version += 1
        self.version += 1

    def namespaces_changed(self) -> None:
        """Selectors may select other namespaces now."""
        self._selecting.clear()

    def _group(self, use: TermUse, topology_key: str, selectors: dict[PodSelector, Weight]) -> TermGroup:
        key = use, topology_key, tuple(selectors.items())
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = TermGroup(use, topology_key, selectors)
            self._file(group)
            self.version += 1
        return group

    def _file(self, group: TermGroup) -> None:
        for selector, weight in group.selectors.items():
            if selector.label_selector is None:
                continue  # selects nothing
            term = _FiledTerm(group, selector, weight)
            self._filed.append(term)
            for index_key in required_label(selector.label_selector) or (None,):
                self._filed_by_label.setdefault(index_key, []).append(term)
            for requirement in selector.label_selector.requirements:
                if requirement.key not in self.selected_keys:
                    self.selected_keys.add(requirement.key)
                    self._selected_keys_version += 1


def _terms_of(affinity: PodAffinity) -> Iterator[tuple[TermUse, Weight, str, PodSelector]]:
    for term in affinity.required_anti:
        yield "rejects", Weight(1, 1), term.topology_key, term.pods
    for term in affinity.required:
        yield "requires", Weight(1, 1), term.topology_key, term.pods
    for preferred in affinity.preferred:
        weight = Weight(preferred.weight, abs(preferred.weight))
        yield "prefers", weight, preferred.term.topology_key, preferred.term.pods


def required_label(selector: LabelSelector) -> tuple[LabelIndexKey, ...]:
    """Labels of which a pod must have one to be selected; empty where no requirement says so."""
    by_key: tuple[LabelIndexKey, ...] = ()
    for requirement in selector.requirements:
        if requirement.operator == "In" and len(requirement.values) <= _FILED_VALUES_MAX:
            return tuple([(requirement.key, value) for value in dict.fromkeys(requirement.values)])
        if requirement.operator in ("In", "Exists"):
            by_key = ((requirement.key, None),)
    return by_key
