"""`PlacedPodTotals`: the totals over the placed pods, which follow the rows as these are refreshed.

A new total visits every placed pod. For a plan it does so in steps, row by row, before the plan decides:
changes of rows that it did not visit yet are left out, as it reads these rows later.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from policysched.evaluate.columns.not_counted import NotCounted
from policysched.evaluate.columns.pod_query import PodTotalSpec, other_pod_context
from policysched.evaluate.columns.pod_totals import PodTotals
from policysched.model.identifiers import PodUid
from policysched.model.nodes import Node
from policysched.model.pods import Pod

PODS_PER_STEP = 128
"""About a millisecond. The pods of one node are in one step."""
_OTHER_SPECS_MAX = 64  # that no plan keeps

_EVERY_ROW = sys.maxsize
_NO_PODS: Mapping[PodUid, Pod] = {}


@dataclass(slots=True)
class _TotalsInPreparation:
    """The pods of the rows before `row` are counted."""

    totals: PodTotals
    row: int = 0


class PlacedPodTotals:
    """Totals of plans are built in steps and kept until `keep_only`. Others are built when they are read, and the
    least recently used ones evicted."""

    def __init__(
        self, pods_by_row: Callable[[], Mapping[int, Mapping[PodUid, Pod]]], nodes: Sequence[Node | None]
    ) -> None:
        """`pods_by_row`: as last counted. `nodes`: by row; both change with the cluster."""
        self._pods_by_row = pods_by_row
        self._nodes = nodes
        self._of_plans: dict[PodTotalSpec, PodTotals] = {}
        self._others: OrderedDict[PodTotalSpec, PodTotals] = OrderedDict()
        self._complete: list[PodTotals] = []  # of both
        self._in_preparation: list[_TotalsInPreparation] = []
        self.visits = 0
        """Counts the pods that changed, once for each of the totals."""

    @property
    def is_empty(self) -> bool:
        return not (self._complete or self._in_preparation)

    def get(self, spec: PodTotalSpec) -> PodTotals:
        totals = self._of_plans.get(spec)
        if totals is not None:
            return totals
        totals = self._others.get(spec)
        if totals is None:
            preparation = _TotalsInPreparation(PodTotals(spec))
            for _ in self._visit_rows(preparation):
                pass
            totals = self._others[spec] = preparation.totals
            if len(self._others) > _OTHER_SPECS_MAX:
                self._others.popitem(last=False)
            self._list_complete()
        else:
            self._others.move_to_end(spec)
        return totals

    def of_plan(self, spec: PodTotalSpec) -> PodTotals | None:
        """None: they are not built in advance."""
        return self._of_plans.get(spec)

    def build_in_steps(self, spec: PodTotalSpec) -> Iterator[None]:
        """Build the totals of a plan. The cluster may change between two steps."""
        if spec in self._of_plans:
            return
        if spec not in self._others:
            preparation = _TotalsInPreparation(PodTotals(spec))
            self._in_preparation.append(preparation)
            try:
                yield from self._visit_rows(preparation)
            finally:
                self._in_preparation.remove(preparation)
            self._others[spec] = preparation.totals
        self._of_plans[spec] = self._others.pop(spec)
        self._list_complete()

    def keep_only(self, specs: Collection[PodTotalSpec]) -> None:
        """Drop the totals that no current plan reads."""
        self._of_plans = {spec: totals for spec, totals in self._of_plans.items() if spec in specs}
        self._list_complete()

    def adjust(self, row: int, pod: Pod, delta: int) -> None:
        """Add (1) or remove (-1) a pod that is on the row."""
        node = self._nodes[row]
        assert node is not None, f"{pod.full_name} is on row {row}, which has no node"
        if self._complete or self._in_preparation:
            other, counting = other_pod_context(pod, node), self._counting(row)
            self.visits += len(counting)
            for totals in counting:
                totals.adjust_by(other, delta)

    def relabel(self, row: int, pods: Iterable[Pod], before: Node, after: Node) -> None:
        """Count the pods of a row by the new labels of its node."""
        if before.labels == after.labels:
            return
        reading = [totals for totals in self._counting(row) if totals.query.reads_node]
        for pod in pods if reading else ():
            for totals in reading:
                totals.adjust(pod, before, -1)
                totals.adjust(pod, after, 1)
                self.visits += 1

    def _visit_rows(self, preparation: _TotalsInPreparation) -> Iterator[None]:
        pods_by_row, visited = self._pods_by_row(), 0
        while preparation.row < len(self._nodes):
            row = preparation.row
            on_row = pods_by_row.get(row, _NO_PODS)
            if visited and visited + len(on_row) > PODS_PER_STEP:
                visited = 0
                yield
                continue  # the row may have changed
            node = self._nodes[row]
            for pod in on_row.values():
                try:
                    preparation.totals.adjust(pod, node, 1)
                except Exception as error:
                    raise NotCounted(None if node is None else node.name, pod) from error
            preparation.row += 1
            visited += len(on_row)
        preparation.row = _EVERY_ROW  # also those that come before the last step is over
        if visited:
            yield

    def _counting(self, row: int) -> list[PodTotals]:
        """All totals that have counted the row's pods."""
        if not self._in_preparation:
            return self._complete
        return self._complete + [each.totals for each in self._in_preparation if row < each.row]

    def _list_complete(self) -> None:
        self._complete = [*self._of_plans.values(), *self._others.values()]
