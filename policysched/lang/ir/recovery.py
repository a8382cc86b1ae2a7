"""What `recover MARK for DURATION` watches: when a sample crosses a limit, when it is back, and which watches a program has."""

from collections.abc import Iterator

from policysched.lang.ir import expr as e
from policysched.lang.ir.arithmetic import compare
from policysched.lang.ir.layers import AmendRule, SetRule
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import FilterRule


def crosses_limit(watch: e.RecoveryCondition, value: float) -> bool:
    return not compare(watch.op, value, watch.limit)


def meets_recovery_mark(watch: e.RecoveryCondition, value: float) -> bool:
    """Whether the value is at the mark or beyond."""
    return compare(watch.op, value, watch.recover_at)


def split_recovery_condition(condition: e.Expr) -> tuple[e.Expr, e.NotRecovered] | None:
    """Of a filter's condition with `recover`: the comparison as it is written, and what was added to it."""
    match condition:
        case (
            e.And(items=(compared, e.Not(operand=e.NotRecovered() as held)))
            | e.Or(items=(compared, e.NotRecovered() as held))
        ):
            return compared, held
        case _:
            return None


def recovery_conditions(program: Program) -> tuple[e.RecoveryCondition, ...]:
    """Each once, those of all layers among them."""
    found = [
        one.condition
        for expr in _filter_conditions(program)
        for one in e.walk(expr)
        if isinstance(one, e.NotRecovered)
    ]
    return tuple(dict.fromkeys(found))


def _filter_conditions(program: Program) -> Iterator[e.Expr]:
    for rule in program.rules.filters:
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
