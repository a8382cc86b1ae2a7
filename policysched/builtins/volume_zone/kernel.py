"""Zones and regions that the labels of bound volumes name, over label codes."""

from collections.abc import Hashable, Sequence

import numpy as np

from policysched.cluster.volumes.availability import Stock
from policysched.cluster.volumes.claims import not_found
from policysched.evaluate.columns.column_kinds import Text
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.interner import ABSENT
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import Around, FilterKernel, Params, PlainFilter, Touch
from policysched.model.objects import ClaimKey, Pod
from policysched.model.zones import TOPOLOGY_LABELS, newer_label, topologies


def bind_filter(pod: Pod, params: Params, around: Around) -> FilterKernel | None:
    claims = tuple(use.claim for use in pod.claims if use.made_for is None)
    return _Filter(pod, claims) if claims else None


class _Filter(PlainFilter):
    touch = Touch.NODE | Touch.VOLUMES
    reason = "node(s) had no available volume zone"

    def __init__(self, pod: Pod, claims: tuple[ClaimKey, ...]) -> None:
        self._pod, self._claims = pod, claims

    def refused(self, view: View) -> Array:
        if self.beforehand(view) is not None:
            return np.ones(view.count, np.bool_)
        elsewhere = np.zeros(view.count, np.bool_)
        for label, values in self._wanted(view.stock):
            codes = view.column(Text("labels", label))
            newer = newer_label(label)
            if newer != label:
                codes = np.where(codes == ABSENT, view.column(Text("labels", newer)), codes)
            elsewhere |= ~np.isin(codes, [view.codes.strings.find(value) for value in values])
        return elsewhere & self._anywhere(view) if elsewhere.any() else elsewhere

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        return ((self.beforehand(view) or self.reason, self.refused(view)),)

    def beforehand(self, view: View) -> str | None:
        stock = view.stock
        for key in self._claims:
            claim = stock.claim(key)
            if claim is None:
                return not_found("persistentvolumeclaim", key.name)
            if claim.volume:
                if stock.volume(claim.volume) is None:
                    return not_found("persistentvolume", claim.volume)
                continue
            if not claim.class_name:
                return "PersistentVolumeClaim had no pv name and storageClass name"
            storage_class = stock.storage_class(claim.class_name)
            if storage_class is None:
                return not_found("storageclass.storage.k8s.io", claim.class_name)
            if not storage_class.waits:
                return "PersistentVolume had no name"
        return None

    def fingerprint(self, view: View) -> Hashable:
        return view.stock.stamps_of(self._pod)

    def _wanted(self, stock: Stock) -> Sequence[tuple[str, frozenset[str]]]:
        found = []
        for key in self._claims:
            claim = stock.claim(key)
            volume = stock.volume(claim.volume) if claim is not None and claim.volume else None
            if volume is not None:
                found += [(one.label, one.values) for one in topologies(volume.labels)]
        return found

    def _anywhere(self, view: View) -> Array:
        """The nodes that say at all in which zone or region they are."""
        masks = [view.column(Text("labels", label)) != ABSENT for label in TOPOLOGY_LABELS]
        return np.asarray(np.logical_or.reduce(masks))
