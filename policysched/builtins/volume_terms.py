"""Node affinity of volumes and node selectors, over label codes.

kube-scheduler matches a volume's terms against node labels alone: matchFields are ignored, and a
term without requirements matches nothing. Source: `CheckNodeAffinity` in
k8s.io/component-helpers/storage/volume.
"""

from collections.abc import Iterable

import numpy as np

from policysched.builtins.node_affinity.kernel import requirement_matches
from policysched.evaluate.columns.column_kinds import NodeMapEntryColumn, PluginMigratedColumn
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.model.selectors import LabelSelector, SelectorRequirement
from policysched.model.storage import NodeSelectorTerms, PersistentVolume


def volume_fits(volume: PersistentVolume, view: View) -> Array:
    """bool[view.count]: by node affinity, with the migrated terms on nodes whose kubelet migrates
    the plugin.
    """
    matches = terms_match(volume.node_affinity_terms, view)
    if volume.migration is None:
        return matches
    is_migrated = view.column(PluginMigratedColumn(volume.migration.plugin))
    return np.where(is_migrated, terms_match(volume.migration.node_affinity_terms, view), matches)


def terms_match(terms: NodeSelectorTerms | None, view: View) -> Array:
    """bool[view.count]; None matches everywhere."""
    if terms is None:
        return np.ones(view.count, np.bool_)
    matched = np.zeros(view.count, np.bool_)
    for term in terms:
        if term.expressions or term.fields:
            matched |= requirements_match(term.expressions, view)
    return matched


def requirements_match(requirements: Iterable[SelectorRequirement], view: View) -> Array:
    matched = np.ones(view.count, np.bool_)
    for requirement in requirements:
        matched &= requirement_matches(requirement, NodeMapEntryColumn("labels", requirement.key), view)
    return matched


def selector_matches(selector: LabelSelector, view: View) -> Array:
    """bool[view.count]"""
    return requirements_match(selector.requirements, view)
