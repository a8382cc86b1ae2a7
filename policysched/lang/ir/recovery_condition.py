"""The condition of a rule with `recover`."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RecoveryCondition:
    """`require METRIC op LIMIT recover MARK for DURATION`: a node passes while `value op limit` is True. After that was
    False, it is rejected until `value op recover_at` has been True for `recover_for_ns`. `limit` and `recover_at` are in
    the unit of the metric's type."""

    metric: str
    op: Literal["<", "<=", ">", ">="]
    limit: int | float
    recover_at: int | float
    recover_for_ns: int
