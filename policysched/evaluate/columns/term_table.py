"""`TermTable`: the affinity terms of placed pods as columns, so that those that select a pod are found for all at once."""

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysched.evaluate.columns.interner import Interner
from policysched.evaluate.columns.selector_table import (
    Labels,
    Mask,
    Numbers,
    SelectorTable,
    filtered,
    ranges,
    renumbered,
    view,
)
from policysched.evaluate.columns.term_groups import TermGroup
from policysched.model.affinity import TermScope, TermSet, TermUse

Integers = NDArray[np.int64]

_KINDS_MIN = 256


@dataclass(frozen=True, slots=True)
class PodsToSelect:
    """Pods of a namespace with these labels; a value that no term names is None. `namespace_labels` None: the namespace is
    unknown."""

    namespace: str
    namespace_labels: Mapping[str, str] | None
    labels: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class GroupWeights:
    """By the `numbers` of groups, ascending: the weights of their terms that select a pod, and their absolute values."""

    numbers: Integers
    totals: Integers
    magnitudes: Integers

    def of_sign(self, sign: int) -> Integers:
        """The sums of the weights of this sign, as absolute values."""
        return self.magnitudes + sign * self.totals >> 1


class _ScopeTable:
    """In which namespaces terms select, each such scope once."""

    def __init__(self) -> None:
        self._codes: dict[TermScope, int] = {}
        self._everywhere = array("b")
        self._selectors = SelectorTable()
        self._name_hashes = array("q")
        self._name_scopes = array("i")

    def __len__(self) -> int:
        return len(self._codes)

    def code(self, scope: TermScope) -> int:
        code = self._codes.get(scope)
        if code is None:
            code = self._codes[scope] = len(self._codes)
            names, selector = scope
            self._everywhere.append(selector is not None and not selector.requirements)
            self._selectors.append(selector)
            self._name_hashes.extend(map(hash, names))
            self._name_scopes.extend([code] * len(names))
        return code

    def selected(self, pods: PodsToSelect) -> Mask:
        """bool for each scope. An unknown namespace matches no selector with requirements."""
        mask = view(self._everywhere).astype(np.bool_)
        if pods.namespace_labels is not None:
            mask |= self._selectors.selected(pods.namespace_labels)
        mask[view(self._name_scopes)[view(self._name_hashes) == hash(pods.namespace)]] = True
        return mask

    def selected_of(self, pods: PodsToSelect, codes: Numbers) -> Mask:
        """bool for each of these scopes."""
        distinct, places = np.unique(codes, return_inverse=True)
        mask = view(self._everywhere)[distinct].astype(np.bool_)
        if pods.namespace_labels is not None:
            mask |= self._selectors.selected_of(pods.namespace_labels, distinct)
        names, owners = ranges(
            *(np.searchsorted(view(self._name_scopes), distinct, side) for side in ("left", "right"))
        )
        mask[owners[view(self._name_hashes)[names] == hash(pods.namespace)]] = True
        return mask[places]

    def keep(self, kept: Mask) -> Numbers:
        """The new codes of the scopes that are kept."""
        codes = np.cumsum(kept, dtype=np.int32) - 1
        self._codes = {scope: int(codes[code]) for scope, code in self._codes.items() if kept[code]}
        self._everywhere = filtered(self._everywhere, kept)
        self._selectors.keep(kept)
        names_kept = kept[view(self._name_scopes)]
        self._name_hashes = filtered(self._name_hashes, names_kept)
        self._name_scopes = renumbered(self._name_scopes, names_kept, codes)
        return codes


class TermTable:
    """Groups by number, and their terms in the same order. `kinds`: the uses and topology keys of groups."""

    def __init__(self) -> None:
        self.groups: list[TermGroup] = []
        self.kinds: Interner[tuple[TermUse, str]] = Interner()
        self._group_kinds = array("i")
        self._group_rejects = array("b")
        self._term_groups = array("i")
        self._term_scopes = array("i")
        self._totals = array("q")
        self._magnitudes = array("q")
        self._selectors = SelectorTable()
        self._scopes = _ScopeTable()

    def add(self, terms: TermSet) -> TermGroup:
        group = TermGroup(terms, len(self.groups))
        self.groups.append(group)
        self._group_kinds.append(self.kinds.code(_kind(terms)))
        self._group_rejects.append(terms.use == "rejects")
        columns = terms.take_columns()
        scopes = [self._scopes.code(scope) for scope in columns.scopes]
        self._term_groups.extend([group.number] * len(columns.term_scopes))
        self._term_scopes.extend([scopes[scope] for scope in columns.term_scopes])
        self._totals.extend(columns.totals)
        self._magnitudes.extend(columns.magnitudes)
        self._selectors.extend(columns.selectors)
        return group

    def named(self, labels: Labels) -> frozenset[tuple[str, str]]:
        """Those labels of whose values a term requires something."""
        return self._selectors.named(labels)

    def kinds_of(self, numbers: NDArray[Any]) -> Numbers:
        """The code of the kind of each group."""
        kinds: Numbers = view(self._group_kinds)[numbers]
        return kinds

    def naming(self, labels: Labels) -> Numbers:
        """The numbers of the groups with a term that requires something of the value of one of the labels, ascending."""
        return np.unique(view(self._term_groups)[self._selectors.naming(labels)])

    def weights(self, pods: PodsToSelect, first: int) -> tuple[GroupWeights, int]:
        """Of the groups from the number `first` on with a term that selects the pods, and how many terms were compared. A group
        that rejects pods does so once, by however many terms."""
        start = bisect_left(self._term_groups, first)
        selected = self._selectors.selected(pods.labels, start)
        selected &= self._scopes.selected(pods)[view(self._term_scopes, start)]
        return self._by_group(np.flatnonzero(selected) + start), len(selected)

    def weights_of(self, pods: PodsToSelect, numbers: Numbers) -> tuple[GroupWeights, int]:
        """The same of the groups with these numbers, ascending and no two equal."""
        terms, _ = ranges(
            *(np.searchsorted(view(self._term_groups), numbers, side) for side in ("left", "right"))
        )
        selected = self._selectors.selected_of(pods.labels, terms.astype(np.int32))
        selected &= self._scopes.selected_of(pods, view(self._term_scopes)[terms])
        return self._by_group(terms[selected]), len(selected)

    def _by_group(self, terms: NDArray[Any]) -> GroupWeights:
        """Of terms in their order."""
        groups = view(self._term_groups)[terms]
        begins = np.flatnonzero(np.diff(groups, prepend=-1))
        numbers = groups[begins].astype(np.int64)
        rejects = view(self._group_rejects)[numbers] == 1
        totals, magnitudes = (
            np.where(rejects, 1, np.add.reduceat(view(weights)[terms], begins)) if len(terms) else numbers
            for weights in (self._totals, self._magnitudes)
        )
        return GroupWeights(numbers, totals, magnitudes)

    def keep(self, kept: Mask) -> bool:
        """Drop the other groups; those that are kept get new numbers, in the same order. Returns whether kinds have new codes: most of
        them were of groups that are gone, as a node can have ever other label keys."""
        self.groups = [group for group, is_kept in zip(self.groups, kept.tolist(), strict=True) if is_kept]
        for number, group in enumerate(self.groups):
            group.number = number
        terms_kept = kept[view(self._term_groups)]
        self._group_kinds = filtered(self._group_kinds, kept)
        self._group_rejects = filtered(self._group_rejects, kept)
        self._term_groups = renumbered(self._term_groups, terms_kept, np.cumsum(kept, dtype=np.int32) - 1)
        self._totals = filtered(self._totals, terms_kept)
        self._magnitudes = filtered(self._magnitudes, terms_kept)
        self._selectors.keep(terms_kept)
        used = np.zeros(len(self._scopes), np.bool_)
        used[view(self._term_scopes)[terms_kept]] = True
        self._term_scopes = renumbered(self._term_scopes, terms_kept, self._scopes.keep(used))
        if len(self.kinds) <= _KINDS_MIN + 2 * len(set(self._group_kinds)):
            return False
        self.kinds = Interner()
        self._group_kinds = array("i", [self.kinds.code(_kind(group.terms)) for group in self.groups])
        return True


def _kind(terms: TermSet) -> tuple[TermUse, str]:
    return terms.use, terms.topology_key
