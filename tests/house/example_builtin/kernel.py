"""Nodes whose condition Ready is not `True` reject all pods."""

import numpy as np

from policysched.evaluate.columns.column_kinds import node_attribute_column
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import ClusterContext, FilterKernel, FilterKernelBase, KernelParams
from policysched.model.pods import Pod

_READY = node_attribute_column(("ready",))
COLUMNS = (_READY,)


def specialize_filter(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> FilterKernel | None:
    return _Filter()


class _Filter(FilterKernelBase):
    reason = "node(s) were not ready"

    def rejected(self, view: View) -> Array:
        return np.logical_not(view.column(_READY))
