"""Nodes with `spec.unschedulable` refuse pods that do not tolerate the taint which stands for it."""

from policysched.cluster.objects import Pod, Taint
from policysched.plan.column_kinds import Unschedulable
from policysched.plan.columns import Array
from policysched.plan.kernel import Around, FilterKernel, Params, PlainFilter
from policysched.plan.tolerating import tolerated
from policysched.plan.view import View

COLUMNS = (Unschedulable(),)
_TAINT = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def bind_filter(pod: Pod, params: Params, around: Around) -> FilterKernel | None:
    return None if tolerated(pod.tolerations, _TAINT) else _Filter()


class _Filter(PlainFilter):
    reason = "node(s) were unschedulable"

    def refused(self, view: View) -> Array:
        return view.column(Unschedulable())
