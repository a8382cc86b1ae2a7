"""Image locality: the size of the pod's images on the node, weighted by how many nodes have them.

Source of the formula: kubernetes v1.37 `pkg/scheduler/framework/plugins/imagelocality`.
"""

from collections.abc import Hashable

import numpy as np

from policysched.evaluate.columns.column_kinds import ImageSizeColumn
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import (
    MAX_SCORE,
    ClusterContext,
    Dependency,
    KernelParams,
    ScoreKernel,
    ScoreKernelBase,
)
from policysched.model.pods import Pod

_MIB = 1024 * 1024
_THRESHOLD_BYTES_MIN = 23 * _MIB
_IMAGE_THRESHOLD_BYTES_MAX = 1000 * _MIB


def specialize_score(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> ScoreKernel | None:
    images = pod.images if params["image_volumes"] == "no" else pod.images + pod.image_volumes
    return _Score(images, len(images if params["image_volumes"] == "yes" else pod.images))


class _ImageSizeNormalizer:
    """Maps bytes to 0..100, from 23 MiB to 1000 MiB per image."""

    node_local = True

    def __init__(self, image_count: int) -> None:
        self._threshold_bytes_max = _IMAGE_THRESHOLD_BYTES_MAX * image_count

    def candidate_stats(self, raw: Array, scored: Array) -> Hashable:
        return ()

    def normalize(self, raw: Array, stats: Hashable) -> Array:
        clamped = np.maximum(np.minimum(raw, self._threshold_bytes_max), _THRESHOLD_BYTES_MIN)
        return np.asarray(
            MAX_SCORE * (clamped - _THRESHOLD_BYTES_MIN) // (self._threshold_bytes_max - _THRESHOLD_BYTES_MIN)
        )


class _Score(ScoreKernelBase):
    depends_on = Dependency.NODE | Dependency.CLUSTER

    def __init__(self, images: tuple[str, ...], image_count: int) -> None:
        self._images = images
        self.normalizer = _ImageSizeNormalizer(image_count)

    def raw(self, view: View) -> Array:
        total = np.zeros(view.count, np.int64)
        for image in self._images:
            having = view.nodes_with_image(image)
            if having:
                size = view.column(ImageSizeColumn(image))
                total += np.where(size > 0, size * (having / view.node_count), 0.0).astype(np.int64)
        return total

    def fingerprint(self, view: View) -> Hashable:
        having = tuple(view.nodes_with_image(image) for image in self._images)
        return (view.node_count, having) if any(having) else ()
