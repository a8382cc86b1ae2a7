"""The order of pods in the queue of their policy: the keys of `queue by`. `scheduler.queue.ordered_queue` sorts by them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import total_ordering
from typing import Any

from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext, EvalValue, ScalarFunction
from policysched.evaluate.scalar.next_change import next_change_ns
from policysched.lang.ir.clock import slope
from policysched.lang.ir.expr import Stage
from policysched.lang.ir.expr_analysis import stage_of
from policysched.lang.ir.program import OrderKey, Program

QueueSortKey = tuple[Any, ...]


@total_ordering
@dataclass(frozen=True, slots=True, eq=True)
class DescendingText:
    """A string that compares in reverse: strings cannot be negated."""

    value: str

    def __lt__(self, other: "DescendingText") -> bool:
        return other.value < self.value


class CompiledQueueOrder:
    """The `queue by` clause. `key` compares with `<` among pods of one policy: for each key whether
    it is missing (missing comes last in both directions) and the value, negated where it is
    descending; the UID comes last.

    Keys that read shares of namespaces change with every placement, for all pods of a namespace at
    once. The checker ensures that they read nothing of the pod, so within a namespace they order
    nothing: `key` leaves them empty, and `with_shares` fills them in to compare namespaces.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._keys: Sequence[tuple[ScalarFunction, bool, int]] = [
            (
                _missing_value if _reads_shares(key) else compile_scalar(key.value, program),
                key.descending,
                slope(key.value) or 0,
            )
            for key in program.queue
        ]
        self._share_keys = [
            (2 * index, compile_scalar(key.value, program), key.descending)
            for index, key in enumerate(program.queue)
            if _reads_shares(key)
        ]
        self._timed_values = [key.value for key in program.queue if Stage.TIME in stage_of(key.value)]

    def key(self, context: EvalContext) -> QueueSortKey:
        values: list[Any] = []
        for function, descending, gained_a_ns in self._keys:
            value: Any = function(context)
            if gained_a_ns and isinstance(value, int):
                # Keys made at different times are compared, so a value that grows equally for all is taken at time 0.
                value = value - gained_a_ns * context.now_ns
            values += sort_value(value, descending)
        values.append(context.pod.uid)
        return tuple(values)

    @property
    def reads_shares(self) -> bool:
        return bool(self._share_keys)

    def with_shares(self, key: QueueSortKey, context: EvalContext) -> QueueSortKey:
        """The same key with the values that depend on the shares of the namespace."""
        values = list(key)
        for index, function, descending in self._share_keys:
            values[index : index + 2] = sort_value(function(context), descending)
        return tuple(values)

    def next_change_ns(self, context: EvalContext) -> int | None:
        """When the key may change by the passing of time.

        A key that grows with the clock equally for every pod (`pod.waited desc`) changes no order;
        only the times at which a comparison, a window or a step in it changes count.
        """
        times = [next_change_ns(value, context, self._program, running=False) for value in self._timed_values]
        return min((time for time in times if time is not None), default=None)


def _reads_shares(key: OrderKey) -> bool:
    return Stage.NAMESPACE_SHARES in stage_of(key.value)


def _missing_value(context: EvalContext) -> EvalValue:
    return None


def sort_value(value: Any, descending: bool) -> tuple[bool, Any]:
    """What a key adds to a sort key: a missing value comes last in either direction."""
    return value is None, 0 if value is None else (_negated(value) if descending else value)


def _negated(value: Any) -> Any:
    return DescendingText(value) if isinstance(value, str) else -value
