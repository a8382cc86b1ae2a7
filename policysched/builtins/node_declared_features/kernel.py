"""Declared features of kubelets: one column for each set of required features. Most pods require
none.
"""

from policysched.evaluate.columns.column_kinds import DeclaredFeaturesColumn
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import ClusterContext, FilterKernel, FilterKernelBase, KernelParams
from policysched.model.pods import Pod


def specialize_filter(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> FilterKernel | None:
    return (
        _Filter(DeclaredFeaturesColumn(tuple(sorted(pod.required_features))))
        if pod.required_features
        else None
    )


class _Filter(FilterKernelBase):
    reason = "node(s) didn't match Pod's required features"

    def __init__(self, declares: DeclaredFeaturesColumn) -> None:
        self._declares = declares

    def rejected(self, view: View) -> Array:
        return ~view.column(self._declares)
