"""Zones and regions from the labels of bound volumes, over label codes."""

from collections.abc import Hashable, Sequence

import numpy as np

from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.binder import not_found_message
from policysched.evaluate.columns.column_kinds import NodeMapEntryColumn
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.interner import ABSENT
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import (
    ClusterContext,
    Dependency,
    FilterKernel,
    FilterKernelBase,
    KernelParams,
)
from policysched.model.identifiers import VolumeClaimKey
from policysched.model.pods import Pod
from policysched.model.volume_topology import TOPOLOGY_LABELS, newer_label, volume_topologies


def specialize_filter(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> FilterKernel | None:
    claims = tuple(use.claim for use in pod.claims if use.owner_pod is None)
    return _Filter(pod, claims) if claims else None


class _Filter(FilterKernelBase):
    depends_on = Dependency.NODE | Dependency.VOLUMES
    reason = "node(s) had no available volume zone"

    def __init__(self, pod: Pod, claims: tuple[VolumeClaimKey, ...]) -> None:
        self._pod, self._claims = pod, claims

    def rejected(self, view: View) -> Array:
        if self.prefilter(view) is not None:
            return np.ones(view.count, np.bool_)
        elsewhere = np.zeros(view.count, np.bool_)
        # Without duplicates: a pod can have a thousand volumes in one zone.
        for label, values in dict.fromkeys(self._required_topologies(view.available_volumes)):
            codes = view.column(NodeMapEntryColumn("labels", label))
            newer = newer_label(label)
            if newer != label:
                codes = np.where(codes == ABSENT, view.column(NodeMapEntryColumn("labels", newer)), codes)
            elsewhere |= ~np.isin(codes, [view.codes.strings.find(value) for value in values])
        return elsewhere & self._has_topology_label(view) if elsewhere.any() else elsewhere

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        return ((self.prefilter(view) or self.reason, self.rejected(view)),)

    def prefilter(self, view: View) -> str | None:
        volumes = view.available_volumes
        for key in self._claims:
            claim = volumes.claim(key)
            if claim is None:
                return not_found_message("persistentvolumeclaim", key.name)
            if claim.volume_name:
                if volumes.volume(claim.volume_name) is None:
                    return not_found_message("persistentvolume", claim.volume_name)
                continue
            if not claim.class_name:
                return "PersistentVolumeClaim had no pv name and storageClass name"
            storage_class = volumes.storage_class(claim.class_name)
            if storage_class is None:
                return not_found_message("storageclass.storage.k8s.io", claim.class_name)
            if not storage_class.waits_for_first_consumer:
                return "PersistentVolume had no name"
        return None

    def fingerprint(self, view: View) -> Hashable:
        return view.available_volumes.stamps_of(self._pod)

    def _required_topologies(self, volumes: AvailableVolumes) -> Sequence[tuple[str, frozenset[str]]]:
        topologies = []
        for key in self._claims:
            claim = volumes.claim(key)
            volume = volumes.volume(claim.volume_name) if claim is not None and claim.volume_name else None
            if volume is not None:
                topologies += [
                    (topology.label, topology.values) for topology in volume_topologies(volume.labels)
                ]
        return topologies

    def _has_topology_label(self, view: View) -> Array:
        """The nodes that have any zone or region label."""
        masks = [view.column(NodeMapEntryColumn("labels", label)) != ABSENT for label in TOPOLOGY_LABELS]
        return np.asarray(np.logical_or.reduce(masks))
