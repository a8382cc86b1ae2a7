"""Which volumes the pod's claims match on each node, and how much storage can be provisioned there."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policysched.builtins.node_affinity.kernel import requirement_matches
from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.binder import matches_claim_spec
from policysched.evaluate.columns.column_kinds import NodeMapEntryColumn, PluginMigratedColumn
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.free_volume_index import NO_FREE_VOLUME, MatchingVolumes
from policysched.evaluate.columns.interner import Interner
from policysched.evaluate.columns.storage_capacity import NO_CAPACITY
from policysched.evaluate.columns.view import View
from policysched.model.identifiers import NodeName
from policysched.model.selectors import LabelSelector, SelectorRequirement
from policysched.model.storage import (
    NO_PROVISIONER,
    NodeSelectorTerms,
    PersistentVolume,
    PersistentVolumeClaim,
)

_NO_ENTRY = NO_CAPACITY, NO_CAPACITY


@dataclass(frozen=True, slots=True)
class ClaimMatch:
    """The volumes that a claim matches. Each of `choices`: capacities in bytes, and by row the position of one of them
    (NO_FREE_VOLUME: none of these). `unmatched`: bool by row, whether there is none."""

    claim: PersistentVolumeClaim
    choices: Sequence[tuple[Array, Array]]
    unmatched: Array

    def capacity_bytes(self) -> Array:
        """int64 by row: the capacity of the volume; 0 where there is none."""
        total = np.zeros(len(self.unmatched), np.int64)
        for capacities, positions in self.choices:
            total += np.append(capacities, 0)[positions]
        return total


def split_delayed(
    claims: Iterable[PersistentVolumeClaim], volumes: AvailableVolumes
) -> tuple[list[PersistentVolumeClaim], list[tuple[PersistentVolumeClaim, NodeName]]]:
    """The claims that need a volume, smallest first, and those for which one is already being provisioned, with the
    node that was selected for it."""
    to_match: list[PersistentVolumeClaim] = []
    selected_nodes: list[tuple[PersistentVolumeClaim, NodeName]] = []
    for claim in claims:
        selected = volumes.selected_node(claim)
        if selected is None:
            to_match.append(claim)
        else:
            selected_nodes.append((claim, selected))
    to_match.sort(key=lambda claim: claim.request_bytes or 0)
    return to_match, selected_nodes


class _FreeVolumeRows:
    """Adapts a view to what `FreeVolumeIndex` reads (`NodeLabelRows`)."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.rows = np.arange(view.all_rows().count)[view.rows]

    @property
    def strings(self) -> Interner[str]:
        return self._view.codes.strings

    @property
    def topology_version(self) -> int:
        return self._view.topology_version

    def label_codes(self, label: str) -> NDArray[np.int32]:
        return self._view.column(NodeMapEntryColumn("labels", label))

    def matching_rows(self, terms: NodeSelectorTerms | None) -> NDArray[np.bool_]:
        return _terms_match(terms, self._view.all_rows())


def can_provision(claim: PersistentVolumeClaim, volumes: AvailableVolumes) -> bool:
    """Whether the class has a provisioner."""
    storage_class = volumes.storage_class(claim.class_name)
    assert storage_class is not None, f"{claim.key} is delayed and has no class"
    return storage_class.provisioner not in ("", NO_PROVISIONER)


def find_matching_volumes(
    claims: Sequence[PersistentVolumeClaim], view: View, decided: Array | None = None
) -> Iterator[ClaimMatch]:
    """Match the claims in this order. On each row, a claim cannot have the volume of an earlier one. Rows that the caller
    has `decided` by then are left out."""
    matched_volumes: list[tuple[str, Array]] = []  # by volume the rows where a claim matches it
    taken: list[tuple[MatchingVolumes, Array]] = []
    rows = _FreeVolumeRows(view)
    for claim in claims:
        asked = np.ones(view.count, np.bool_) if decided is None else ~decided
        matched, looking = np.zeros(view.count, np.bool_), asked.copy()
        choices: list[tuple[Array, Array]] = []
        for volume in view.available_volumes.volumes_for_claim(claim):
            if matches_claim_spec(volume, claim):
                candidates = looking.copy()
                for name, where in matched_volumes:
                    if name == volume.name:
                        candidates &= ~where
                matching = candidates & _terms_match(volume.node_affinity_terms, view)
                matched_volumes.append((volume.name, matching))
                matched |= matching
                choices.append((np.array([volume.capacity_bytes]), np.where(matching, 0, NO_FREE_VOLUME)))
                looking &= ~candidates
        if looking.any():
            free = view.free_volumes(claim)
            picked = free.best(rows, taken, looking)
            taken.append((free, picked))
            matched |= picked != NO_FREE_VOLUME
            choices.append((free.index.capacities, picked))
        yield ClaimMatch(claim, choices, asked & ~matched)


def provisionable_bytes(class_name: str, view: View) -> Array:
    """int64[view.count, 2]: the largest volume of the class that can be provisioned for each node, and
    the capacity that is left there; NO_CAPACITY where none can.
    """
    all_rows = view.all_rows()
    by_row: Array = view.storage_capacity(class_name).by_row(
        all_rows.topology_version, lambda: _provisionable_bytes(class_name, all_rows)
    )
    return by_row[view.rows]


def _provisionable_bytes(class_name: str, view: View) -> Array:
    columns = {
        label: view.column(NodeMapEntryColumn("labels", label))
        for labels in view.storage_capacity(class_name).by_labels
        for label in labels
    }
    capacities = view.storage_capacity(class_name)  # after the columns: every label value has a code
    most = np.full((view.count, 2), NO_CAPACITY)
    for labels, entry_of in capacities.by_labels.items():
        codes = zip(*[columns[label].tolist() for label in labels], strict=True)
        found = [entry_of.get(values, _NO_ENTRY) for values in codes]
        entries = np.array(found, np.int64).reshape(view.count, 2)
        np.copyto(most, entries, where=(entries[:, :1] > most[:, :1]))
    for selector, entry in capacities.by_selector.items():
        larger = _selector_matches(selector, view) & (entry[0] > most[:, 0])
        np.copyto(most, np.array(entry), where=larger[:, np.newaxis])
    return most


# ── node affinity of volumes and node selectors, over label codes ───────────────────────────────────────────────
#
# kube-scheduler matches a volume's terms only against node labels: matchFields are ignored, and a
# term without requirements matches nothing. Source: `CheckNodeAffinity` in
# k8s.io/component-helpers/storage/volume.


def volume_fits(volume: PersistentVolume, view: View) -> Array:
    """bool[view.count]: by node affinity, with the migrated terms on nodes whose kubelet migrates
    the plugin.
    """
    matches = _terms_match(volume.node_affinity_terms, view)
    if volume.migration is None:
        return matches
    is_migrated = view.column(PluginMigratedColumn(volume.migration.plugin))
    return np.where(is_migrated, _terms_match(volume.migration.node_affinity_terms, view), matches)


def _terms_match(terms: NodeSelectorTerms | None, view: View) -> Array:
    """bool[view.count]; None matches everywhere."""
    if terms is None:
        return np.ones(view.count, np.bool_)
    matched = np.zeros(view.count, np.bool_)
    for term in terms:
        if term.expressions or term.fields:
            matched |= requirements_match(term.expressions, view)
    return matched


def requirements_match(requirements: Iterable[SelectorRequirement], view: View) -> Array:
    """bool[view.count]: the rows whose labels meet all requirements."""
    matched = np.ones(view.count, np.bool_)
    for requirement in requirements:
        matched &= requirement_matches(requirement, NodeMapEntryColumn("labels", requirement.key), view)
    return matched


def _selector_matches(selector: LabelSelector, view: View) -> Array:
    """bool[view.count]"""
    return requirements_match(selector.requirements, view)
