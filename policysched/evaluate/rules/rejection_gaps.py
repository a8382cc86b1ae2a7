"""How far a rejected node is from passing a rule, with numbers and units, for explanations."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext, ScalarFunction
from policysched.lang.ir import expr as e
from policysched.lang.ir.arithmetic import compare
from policysched.lang.ir.attributes import resource_type
from policysched.lang.ir.expr_analysis import stage_of, type_of, walk
from policysched.lang.ir.program import Program
from policysched.lang.ir.recovery import split_recovery_condition
from policysched.lang.ir.rules import FilterRule
from policysched.lang.ir.verdict import RejectionGap
from policysched.lang.types.kinds import TypeKind
from policysched.lang.types.units import format_value

GapFunction = Callable[[EvalContext], RejectionGap | None]

_ORDERED = ("<", "<=", ">", ">=")


def gap_function(rule: FilterRule, program: Program) -> GapFunction:
    """The gap of a filter that compares numbers: the largest of the comparisons that decide. None on a node where another
    part of the condition decides, or where a value is missing. Nothing is compiled before the first call."""

    @cache
    def compiled() -> list[tuple[e.Compare, ScalarFunction, ScalarFunction]]:
        return [
            (part, compile_scalar(part.left, program), compile_scalar(part.right, program))
            for part in _deciding_comparisons(rule)
        ]

    def gap_at(context: EvalContext) -> RejectionGap | None:
        gaps = []
        for part, left_of, right_of in compiled():
            left, right = left_of(context), right_of(context)
            if not isinstance(left, int | float) or not isinstance(right, int | float):
                return None
            if compare(part.op, left, right) is rule.rejects:
                gaps.append(_comparison_gap(part, left, right))
        return max(gaps, key=lambda gap: gap.ratio, default=None)

    return gap_at


def _deciding_comparisons(rule: FilterRule) -> Iterator[e.Compare]:
    """The comparisons of which a failing one (for `reject`, a true one) rejects the node by itself."""
    split = split_recovery_condition(rule.condition)
    condition = rule.condition if split is None else split[0]
    parts = condition.items if isinstance(condition, e.Or if rule.rejects else e.And) else (condition,)
    for part in parts:
        if isinstance(part, e.Compare) and part.op in _ORDERED and _reads_one_node(part):
            yield part


def _reads_one_node(part: e.Compare) -> bool:
    """Other values have no meaning for one node alone."""
    reads_more = any(isinstance(node, e.GangTraffic | e.Aggregate) for node in walk(part))
    return type_of(part.left).is_numeric and not reads_more


def _comparison_gap(part: e.Compare, left: int | float, right: int | float) -> RejectionGap:
    """The side that depends on the node is what the node has; the other is the limit."""
    actual, limit, subject = left, right, part.left
    if e.Stage.NODE not in stage_of(part.left) and e.Stage.NODE in stage_of(part.right):
        actual, limit, subject = right, left, part.right
    type_ = type_of(subject)
    by_type = type_ if type_.kind is not TypeKind.TIMESTAMP else type(type_)(TypeKind.DURATION)
    difference = abs(left - right)
    return RejectionGap(
        " ".join(subject.span.text.split()),
        format_value(actual, type_),
        format_value(limit, type_of(part.right if subject is part.left else part.left)),
        format_value(difference, by_type),
        difference / max(abs(limit), 1e-9),
    )


def resource_gaps(requests: Mapping[str, int], shortfalls: Mapping[str, int]) -> tuple[RejectionGap, ...]:
    """The gaps of a filter that accounts resources, one for each that is short. `shortfalls` by resource, `pods` counts
    pods."""
    requested = {**requests, "pods": 1}
    short = {
        resource: amount for resource, amount in shortfalls.items() if amount > 0 and requested.get(resource)
    }
    return tuple(
        RejectionGap(
            resource,
            format_value(max(requested[resource] - amount, 0), resource_type(resource)),
            format_value(requested[resource], resource_type(resource)),
            format_value(amount, resource_type(resource)),
            amount / requested[resource],
            shortfalls=short,
        )
        for resource, amount in short.items()
    )
