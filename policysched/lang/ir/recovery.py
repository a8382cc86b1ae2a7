"""Recovery conditions, `recover MARK for DURATION`: when a sample crosses the limit and when it meets the mark."""

from collections.abc import Iterator

from policysched.lang.ir import expr as e
from policysched.lang.ir.arithmetic import compare
from policysched.lang.ir.expr_analysis import walk
from policysched.lang.ir.layers import AmendRule, SetRule
from policysched.lang.ir.program import Program
from policysched.lang.ir.recovery_condition import RecoveryCondition
from policysched.lang.ir.rules import FilterRule


def crosses_limit(condition: RecoveryCondition, value: float) -> bool:
    return not compare(condition.op, value, condition.limit)


def meets_recovery_mark(condition: RecoveryCondition, value: float) -> bool:
    """Whether the value is at or beyond the mark."""
    return compare(condition.op, value, condition.recover_at)


def split_recovery_condition(condition: e.Expr) -> tuple[e.Expr, e.NotRecovered] | None:
    """The comparison and the recovery part of a filter's condition with `recover`; None without `recover`."""
    match condition:
        case (
            e.And(items=(comparison, e.Not(operand=e.NotRecovered() as not_recovered)))
            | e.Or(items=(comparison, e.NotRecovered() as not_recovered))
        ):
            return comparison, not_recovered
        case _:
            return None


def recovery_conditions(program: Program) -> tuple[RecoveryCondition, ...]:
    """The distinct recovery conditions of all filters, including those of layers."""
    conditions = [
        part.condition
        for expr in _filter_conditions(program)
        for part in walk(expr)
        if isinstance(part, e.NotRecovered)
    ]
    return tuple(dict.fromkeys(conditions))


def _filter_conditions(program: Program) -> Iterator[e.Expr]:
    for rule in (*program.rules.filters, *program.shadows.filters):
        if isinstance(rule, FilterRule):
            yield rule.condition
    for layer in program.layers:
        for change in layer.changes:
            match change:
                case SetRule(rule=FilterRule(condition=condition)):
                    yield condition
                case AmendRule(changes=changes):
                    yield from (
                        value for name, value in changes if name == "condition" and isinstance(value, e.Expr)
                    )
