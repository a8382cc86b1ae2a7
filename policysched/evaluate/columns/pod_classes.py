"""`PodClassTable`: the classes of placed pods by label, so that a selector is evaluated for all of them at once.

A decision about a pod with many terms compares each with every class. As arrays that takes
microseconds for thousands of classes; class by class it takes milliseconds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policysched.evaluate.columns.label_columns import LabelColumns, LabelValues
from policysched.evaluate.columns.namespace_scopes import SelectedNamespaces
from policysched.evaluate.columns.selector_table import Mask
from policysched.evaluate.columns.term_groups import TermGroup
from policysched.model.pods import Pod
from policysched.model.selectors import LabelSelector, requirement_holds

NamespaceScope = frozenset[str] | SelectedNamespaces | None
"""Namespaces by name, or as a selector selects them; None: all."""

_LABELS_PER_UNIT, _VALUES_PER_UNIT = 8, 16


@dataclass(frozen=True, slots=True)
class PodMatcher:
    """Matches the pods that every one of `selectors` selects, each in its scope. `if_unknown`: whether it matches pods that may have
    the labels for that, as not all of theirs are known (`Pod.dropped`)."""

    selectors: tuple[tuple[NamespaceScope, LabelSelector], ...]
    exclude_terminating: bool = False
    if_unknown: bool = False

    @property
    def size(self) -> int:
        """One for each selector, and one for sixteen requirements and values."""
        requirements = [each for _, selector in self.selectors for each in selector.requirements]
        return len(self.selectors) + sum(len(each.values) + 1 for each in requirements) // _VALUES_PER_UNIT

    def matches(self, pod_class: "PodClass") -> bool:
        if self.exclude_terminating and pod_class.terminating:
            return False
        return all(
            (scope is None or pod_class.namespace in scope)
            and pod_class.is_selected(selector, if_unknown=self.if_unknown)
            for scope, selector in self.selectors
        )


class PodClass:
    """Placed pods that are equal in everything that counts depend on. `index`: the position in the table. `rows`: the number of
    pods by row. `size`: one, plus one for each term and for eight labels. `counted_in`: the groups of its terms.
    `dropped`: it has no pods, and never gets any more. `has_unknown_labels`: `labels` are some of those of its pods."""

    __slots__ = (
        "affinity",
        "counted_in",
        "dropped",
        "has_unknown_labels",
        "index",
        "labels",
        "namespace",
        "rows",
        "size",
        "terminating",
    )

    def __init__(self, pod: Pod) -> None:
        self.namespace = pod.namespace
        self.labels = pod.labels
        self.has_unknown_labels = "labels" in pod.dropped
        self.terminating = pod.terminating
        self.affinity = pod.pod_affinity
        self.index = -1
        self.dropped = False
        self.rows: dict[int, int] = {}
        self.counted_in: list[TermGroup] = []
        affinity = pod.pod_affinity
        self.size = 1 + len(pod.labels) // _LABELS_PER_UNIT
        if affinity is not None:
            self.size += len(affinity.required) + len(affinity.required_anti) + len(affinity.preferred)

    def is_selected(self, selector: LabelSelector, *, if_unknown: bool) -> bool:
        if not self.has_unknown_labels:
            return selector.selects(self.labels)
        return all(
            requirement_holds(requirement, self.labels) if requirement.key in self.labels else if_unknown
            for requirement in selector.requirements
        )

    def count_in(self, counted: TermGroup) -> None:
        """Add the pods of the class to a count."""
        self.counted_in.append(counted)
        counted.class_count += 1
        for row, count in self.rows.items():
            counted.row_counts.adjust(row, count)

    def drop(self) -> None:
        self.dropped = True
        for counted in self.counted_in:
            counted.class_count -= 1


class PodClassTable:
    def __init__(self) -> None:
        self.classes: list[PodClass] = []
        self._namespaces = LabelValues()
        self._labels = LabelColumns()
        self._terminating: list[int] = []
        self._with_unknown_labels: list[int] = []
        self._unknown_mask: Mask | None = None  # cached

    def add(self, pod_class: PodClass) -> None:
        pod_class.index = len(self.classes)
        self.append(pod_class)

    def append(self, pod_class: PodClass) -> None:
        """Without its `index`, which is that in another table."""
        index = len(self.classes)
        self.classes.append(pod_class)
        self._unknown_mask = None
        self._namespaces.append(index, pod_class.namespace)
        if pod_class.terminating:
            self._terminating.append(index)
        if pod_class.has_unknown_labels:
            self._with_unknown_labels.append(index)
        self._labels.append(index, pod_class.labels)

    def mask(self, matcher: PodMatcher) -> Mask:
        """bool by class index: as `PodMatcher.matches`, for all classes."""
        mask = np.ones(len(self.classes), np.bool_)
        if matcher.exclude_terminating:
            mask[self._terminating] = False
        for scope, selector in matcher.selectors:
            mask &= self.selected(scope, selector, if_unknown=matcher.if_unknown)
        return mask

    def selected(self, scope: NamespaceScope, selector: LabelSelector, *, if_unknown: bool = False) -> Mask:
        """bool by class index: which classes one selector selects. As `PodClass.is_selected`."""
        if scope is None:
            mask = np.ones(len(self.classes), np.bool_)
        elif isinstance(scope, SelectedNamespaces):
            mask = scope.by_code(self._namespaces.values).take(self._namespaces.codes())
        else:
            mask = self._only(self._namespaces.with_value(scope))
        for requirement in selector.requirements:
            if not self._with_unknown_labels:
                self._labels.restrict(mask, requirement)
                continue
            unknown = self._unknown(requirement.key)
            may_be_selected = mask & unknown
            self._labels.restrict(mask, requirement)
            mask[unknown] = False
            if if_unknown:
                mask |= may_be_selected
        return mask

    def _unknown(self, key: str) -> Mask:
        """The classes that may have a label with this key which is not known."""
        if self._unknown_mask is None:
            self._unknown_mask = self._only(np.array(self._with_unknown_labels, np.intp))
        known = self._labels.with_key(key)
        if known is None:
            return self._unknown_mask
        unknown = self._unknown_mask.copy()
        unknown[known] = False
        return unknown

    def _only(self, indexes: NDArray[np.intp]) -> Mask:
        mask = np.zeros(len(self.classes), np.bool_)
        mask[indexes] = True
        return mask
