"""`PlanColumns`: the columns that plans need, built in steps between decisions, and the first count of the placed pods."""

from collections.abc import Collection, Iterator

from policysched.evaluate.columns.column_kinds import ColumnKind
from policysched.evaluate.columns.columns import Columns
from policysched.evaluate.plan.columns_needed import columns_needed
from policysched.evaluate.plan.plan import Plan


class PlanColumns:
    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._kinds: dict[Plan, tuple[ColumnKind, ...]] = {}

    def build_at_start(self, plan: Plan) -> None:
        """Build the columns. Nodes are read, and placed pods counted, in slices before the next decision."""
        for _ in self._build_in_steps(plan):
            pass
        if plan.counts_placed_pods:
            self._columns.counted_pods.is_awaited = True

    def build_in_steps(self, plan: Plan) -> Iterator[None]:
        """Build the columns and count the placed pods, in steps of one rule, then of a thousand rows or a few hundred pods, so
        that decisions and changes can run in between."""
        yield from self._build_in_steps(plan)
        while plan.counts_placed_pods and self._columns.counted_pods.count_slice():
            yield

    def _build_in_steps(self, plan: Plan) -> Iterator[None]:
        yield from plan.lower_in_steps(())
        if plan.shadow is not None:
            yield from plan.shadow.lower_in_steps(())
        for kind in self._kinds_of(plan):
            yield from self._columns.materialize_steps(kind)

    def retain_only(self, plans: Collection[Plan]) -> None:
        """Drop the columns of other plans: each edit of a policy would leave columns that are refreshed for ever."""
        self._columns.keep_only({kind for plan in plans for kind in self._kinds_of(plan)})
        self._kinds = {plan: self._kinds[plan] for plan in plans if plan.is_lowered(())}

    def _kinds_of(self, plan: Plan) -> tuple[ColumnKind, ...]:
        """Empty until the plan is lowered."""
        if not plan.is_lowered(()):
            return ()
        if plan not in self._kinds:
            self._kinds[plan] = tuple(dict.fromkeys(columns_needed(plan)))
        return self._kinds[plan]
