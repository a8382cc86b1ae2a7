"""Node affinity of volumes, and selectors of nodes, over label codes.

kube-scheduler holds a volume's terms against the labels of a node alone: matchFields are not looked at, and a term
without any requirement matches nothing. Source: `CheckNodeAffinity` in k8s.io/component-helpers/storage/volume.
"""

from collections.abc import Iterable

import numpy as np

from policysched.builtins.node_affinity.kernel import holds
from policysched.evaluate.columns.column_kinds import Migrated, Text
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.model.objects import LabelSelector, Requirement
from policysched.model.storage import PersistentVolume, Terms


def volume_fits(volume: PersistentVolume, view: View) -> Array:
    """bool[view.count]: by its node affinity, as each node's kubelet sees the volume."""
    fits = terms_fit(volume.required, view)
    if volume.migration is None:
        return fits
    there = view.column(Migrated(volume.migration.plugin))
    return np.where(there, terms_fit(volume.migration.required, view), fits)


def terms_fit(terms: Terms | None, view: View) -> Array:
    """bool[view.count]; None: everywhere."""
    if terms is None:
        return np.ones(view.count, np.bool_)
    found = np.zeros(view.count, np.bool_)
    for term in terms:
        if term.expressions or term.fields:
            found |= all_hold(term.expressions, view)
    return found


def all_hold(requirements: Iterable[Requirement], view: View) -> Array:
    found = np.ones(view.count, np.bool_)
    for one in requirements:
        found &= holds(one, Text("labels", one.key), view)
    return found


def selects(selector: LabelSelector, view: View) -> Array:
    """bool[view.count]"""
    return all_hold(selector.requirements, view)
