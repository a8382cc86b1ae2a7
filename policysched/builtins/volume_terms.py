"""Node affinity of volumes, and selectors of nodes, over label codes.

kube-scheduler holds a volume's terms against the labels of a node alone: matchFields are not looked at, and a term
without any requirement matches nothing. Source: `CheckNodeAffinity` in k8s.io/component-helpers/storage/volume.
"""

from collections.abc import Iterable

import numpy as np

from policysched.builtins.node_affinity.kernel import requirement_matches
from policysched.evaluate.columns.column_kinds import NodeMapEntry, PluginMigrated
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.model.selectors import LabelSelector, SelectorRequirement
from policysched.model.storage import NodeSelectorTerms, PersistentVolume


def volume_fits(volume: PersistentVolume, view: View) -> Array:
    """bool[view.count]: by its node affinity, as each node's kubelet sees the volume."""
    fits = terms_match(volume.node_affinity_terms, view)
    if volume.migration is None:
        return fits
    there = view.column(PluginMigrated(volume.migration.plugin))
    return np.where(there, terms_match(volume.migration.node_affinity_terms, view), fits)


def terms_match(terms: NodeSelectorTerms | None, view: View) -> Array:
    """bool[view.count]; None: everywhere."""
    if terms is None:
        return np.ones(view.count, np.bool_)
    found = np.zeros(view.count, np.bool_)
    for term in terms:
        if term.expressions or term.fields:
            found |= requirements_match(term.expressions, view)
    return found


def requirements_match(requirements: Iterable[SelectorRequirement], view: View) -> Array:
    found = np.ones(view.count, np.bool_)
    for one in requirements:
        found &= requirement_matches(one, NodeMapEntry("labels", one.key), view)
    return found


def selector_matches(selector: LabelSelector, view: View) -> Array:
    """bool[view.count]"""
    return requirements_match(selector.requirements, view)
