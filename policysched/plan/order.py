"""A pod's place in the queue of its policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import total_ordering
from typing import Any

from policysched.lang.expr import Stage, stage_of
from policysched.lang.program import Program
from policysched.plan.scalars import Function, Seen, compiled
from policysched.plan.times import next_change_ns, slope

OrderPlace = tuple[Any, ...]


@total_ordering
@dataclass(frozen=True, slots=True, eq=True)
class Reversed:
    """A value that compares the other way round: strings cannot be negated."""

    value: str

    def __lt__(self, other: "Reversed") -> bool:
        return other.value < self.value


class Order:
    """`key` is comparable with `<` among pods of one policy: for each key of `queue by` whether it is missing (what is
    missing comes last, whichever the direction) and the value, turned round where it is descending; the UID closes it."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._keys: Sequence[tuple[Function, bool, int]] = [
            (compiled(key.value, program), key.descending, slope(key.value) or 0) for key in program.queue
        ]
        self._timed = [key.value for key in program.queue if Stage.TIME in stage_of(key.value)]

    def key(self, seen: Seen) -> OrderPlace:
        places: list[Any] = []
        for function, descending, gained_a_ns in self._keys:
            value: Any = function(seen)
            if gained_a_ns and isinstance(value, int):
                # Keys made at different times are compared: what grows for all alike is told apart by what it was at 0.
                value = value - gained_a_ns * seen.now_ns
            places.append(value is None)
            places.append(0 if value is None else (_turned(value) if descending else value))
        places.append(seen.pod.uid)
        return tuple(places)

    def next_change_ns(self, seen: Seen) -> int | None:
        """When the key may become another one by the mere passing of time.

        A key that grows with the clock for every pod alike (`pod.waited desc`) changes no order by itself; only the
        moments count at which a comparison, a window or a step in it flips.
        """
        times = [next_change_ns(value, seen, self._program, running=False) for value in self._timed]
        return min((time for time in times if time is not None), default=None)


def _turned(value: Any) -> Any:
    return Reversed(value) if isinstance(value, str) else -value
