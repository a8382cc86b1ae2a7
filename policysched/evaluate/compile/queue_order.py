"""A pod's place in the queue of its policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import total_ordering
from typing import Any

from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext, EvalValue, ScalarFunction
from policysched.evaluate.scalar.next_change import next_change_ns, slope
from policysched.lang.ir.expr import Stage, stage_of
from policysched.lang.ir.program import OrderKey, Program

QueueSortKey = tuple[Any, ...]


@total_ordering
@dataclass(frozen=True, slots=True, eq=True)
class DescendingText:
    """A value that compares the other way round: strings cannot be negated."""

    value: str

    def __lt__(self, other: "DescendingText") -> bool:
        return other.value < self.value


class CompiledQueueOrder:
    """`key` is comparable with `<` among pods of one policy: for each key of `queue by` whether it is missing (what is
    missing comes last, whichever the direction) and the value, turned round where it is descending; the UID closes it.

    Keys that read what namespaces hold change with every placement, for all pods of a namespace at once. The checker sees to
    it that they read nothing of the pod, so within a namespace they order nothing: `key` leaves their places empty, and
    `with_shares` fills them in when namespaces are to be compared."""

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
            (2 * place, compile_scalar(key.value, program), key.descending)
            for place, key in enumerate(program.queue)
            if _reads_shares(key)
        ]
        self._timed_values = [key.value for key in program.queue if Stage.TIME in stage_of(key.value)]

    def key(self, seen: EvalContext) -> QueueSortKey:
        places: list[Any] = []
        for function, descending, gained_a_ns in self._keys:
            value: Any = function(seen)
            if gained_a_ns and isinstance(value, int):
                # Keys made at different times are compared: what grows for all alike is told apart by what it was at 0.
                value = value - gained_a_ns * seen.now_ns
            places += _sort_value(value, descending)
        places.append(seen.pod.uid)
        return tuple(places)

    @property
    def reads_shares(self) -> bool:
        return bool(self._share_keys)

    def with_shares(self, key: QueueSortKey, seen: EvalContext) -> QueueSortKey:
        """The same key with the places that depend on what the namespace holds."""
        places = list(key)
        for place, function, descending in self._share_keys:
            places[place : place + 2] = _sort_value(function(seen), descending)
        return tuple(places)

    def next_change_ns(self, seen: EvalContext) -> int | None:
        """When the key may become another one by the mere passing of time.

        A key that grows with the clock for every pod alike (`pod.waited desc`) changes no order by itself; only the
        moments count at which a comparison, a window or a step in it flips.
        """
        times = [next_change_ns(value, seen, self._program, running=False) for value in self._timed_values]
        return min((time for time in times if time is not None), default=None)


def _reads_shares(key: OrderKey) -> bool:
    return Stage.NAMESPACE_SHARES in stage_of(key.value)


def _missing_value(seen: EvalContext) -> EvalValue:
    return None


def _sort_value(value: Any, descending: bool) -> tuple[bool, Any]:
    return value is None, 0 if value is None else (_negated(value) if descending else value)


def _negated(value: Any) -> Any:
    return DescendingText(value) if isinstance(value, str) else -value
