"""What kubelets declare, a column for each set of features that pods need. Most pods need none."""

from policysched.evaluate.columns.column_kinds import Declares
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import Around, FilterKernel, Params, PlainFilter
from policysched.model.objects import Pod


def bind_filter(pod: Pod, params: Params, around: Around) -> FilterKernel | None:
    return _Filter(Declares(tuple(sorted(pod.required_features)))) if pod.required_features else None


class _Filter(PlainFilter):
    reason = "node(s) didn't match Pod's required features"

    def __init__(self, declares: Declares) -> None:
        self._declares = declares

    def refused(self, view: View) -> Array:
        return ~view.column(self._declares)
