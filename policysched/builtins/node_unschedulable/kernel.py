"""Nodes with `spec.unschedulable` reject pods that do not tolerate the corresponding taint."""

from policysched.builtins.tolerations import TolerationIndex
from policysched.evaluate.columns.column_kinds import NodeUnschedulableColumn
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import ClusterContext, FilterKernel, FilterKernelBase, KernelParams
from policysched.model.nodes import Taint
from policysched.model.pods import Pod

COLUMNS = (NodeUnschedulableColumn(),)
_TAINT = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def specialize_filter(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> FilterKernel | None:
    return None if TolerationIndex(pod.tolerations).tolerates(_TAINT) else _Filter()


class _Filter(FilterKernelBase):
    reason = "node(s) were unschedulable"

    def rejected(self, view: View) -> Array:
        return view.column(NodeUnschedulableColumn())
