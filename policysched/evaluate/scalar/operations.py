"""Scalar operations: functions composed of the functions of their operands.

A missing operand makes the result missing, unless another operand decides it.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from math import ceil
from zoneinfo import ZoneInfo

from policysched.evaluate.scalar.eval_context import (
    EvalContext,
    EvalValue,
    ExprDeclarations,
    ScalarFunction,
    expect_number,
)
from policysched.lang.ir import expr as e
from policysched.lang.ir.arithmetic import (
    Number,
    arithmetic,
    call,
    clamp_finite,
    compare,
    integer_sum,
    negate,
    saturate,
)
from policysched.lang.ir.expr_analysis import is_floating, type_of


def logical_not(operand: ScalarFunction) -> ScalarFunction:
    def evaluate(context: EvalContext) -> EvalValue:
        value = operand(context)
        return None if value is None else not value

    return evaluate


def logical_connective(items: list[ScalarFunction], *, decisive: bool) -> ScalarFunction:
    """Kleene logic: one decisive item decides, whatever else is missing."""

    def evaluate(context: EvalContext) -> EvalValue:
        missing = False
        for item in items:
            value = item(context)
            if value is None:
                missing = True
            elif value is decisive:
                return decisive
        return None if missing else not decisive

    return evaluate


def comparison(expr: e.Compare, left: ScalarFunction, right: ScalarFunction) -> ScalarFunction:
    floating = is_floating(expr.left) or is_floating(expr.right)

    def evaluate(context: EvalContext) -> EvalValue:
        first, second = left(context), right(context)
        if first is None or second is None:
            return None
        assert not isinstance(first, tuple) and not isinstance(second, tuple), (
            f"{first!r} {expr.op} {second!r}"
        )
        return compare(expr.op, float(first) if floating else first, second)

    return evaluate


def membership(expr: e.In, item: ScalarFunction, options: ScalarFunction) -> ScalarFunction:
    element = type_of(expr.options).element
    floating = is_floating(expr.item) or (element is not None and element.is_float64)

    def evaluate(context: EvalContext) -> EvalValue:
        value, choices = item(context), options(context)
        if value is None or choices is None:
            return None
        assert isinstance(choices, tuple) and not isinstance(value, tuple), f"{value!r} in {choices!r}"
        if not floating:
            return value in choices
        return float(value) in [float(choice) for choice in choices if isinstance(choice, int | float)]

    return evaluate


def binary_arithmetic(expr: e.Arith, left: ScalarFunction, right: ScalarFunction) -> ScalarFunction:
    def evaluate(context: EvalContext) -> EvalValue:
        first, second = left(context), right(context)
        if first is None or second is None:
            return None
        return arithmetic(expr.op, expect_number(first), expect_number(second), floating=expr.floating)

    return evaluate


def arithmetic_negation(operand: ScalarFunction) -> ScalarFunction:
    def evaluate(context: EvalContext) -> EvalValue:
        value = operand(context)
        return None if value is None else negate(expect_number(value))

    return evaluate


def function_call(expr: e.Call, args: list[ScalarFunction]) -> ScalarFunction:
    def evaluate(context: EvalContext) -> EvalValue:
        numbers = []
        for arg in args:
            value = arg(context)
            if value is None:
                return None
            numbers.append(expect_number(value))
        return call(expr.function, numbers, floating=expr.floating)

    return evaluate


def rank(item: ScalarFunction, order: tuple[str, ...]) -> ScalarFunction:
    ranks = {text: position for position, text in reversed(list(enumerate(order)))}

    def evaluate(context: EvalContext) -> EvalValue:
        value = item(context)
        return None if value is None else ranks.get(str(value), len(order))

    return evaluate


def text_function(
    text: ScalarFunction, function: Callable[[str], bool | int | tuple[str, ...]]
) -> ScalarFunction:
    def evaluate(context: EvalContext) -> EvalValue:
        value = text(context)
        return None if value is None else function(str(value))

    return evaluate


def value_or_fallback(expr: e.Else, preferred: ScalarFunction, fallback: ScalarFunction) -> ScalarFunction:
    def evaluate(context: EvalContext) -> EvalValue:
        value = preferred(context)
        if value is None:
            value = fallback(context)
        return float(expect_number(value)) if expr.floating and value is not None else value

    return evaluate


def conditional(
    expr: e.If, condition: ScalarFunction, then: ScalarFunction, otherwise: ScalarFunction
) -> ScalarFunction:
    def evaluate(context: EvalContext) -> EvalValue:
        chosen = condition(context)
        if chosen is None:
            return None
        value = then(context) if chosen else otherwise(context)
        return float(expect_number(value)) if expr.floating and value is not None else value

    return evaluate


def pod_count(where: ScalarFunction | None) -> ScalarFunction:
    def evaluate(context: EvalContext) -> EvalValue:
        assert context.usage is not None, "the context has no node to count pods on"
        if where is None:
            return context.usage.pod_count
        return sum(where(context.with_other_pod(other)) is True for other in context.usage.pods.values())

    return evaluate


def pod_sum(expr: e.SumPodsOnNode, amount: ScalarFunction) -> ScalarFunction:
    floating = expr.type.is_float64

    def evaluate(context: EvalContext) -> EvalValue:
        assert context.usage is not None, "the context has no node to sum requests on"
        others = context.usage.pods.values()
        return integer_sum(
            (requested_amount(amount, context.with_other_pod(other)) for other in others), floating=floating
        )

    return evaluate


def requested_amount(amount: ScalarFunction, context: EvalContext) -> int:
    """The amount of the pod being counted, rounded up to whole units and never negative."""
    value = amount(context)
    return 0 if value is None else max(0, ceil(expect_number(value)))


def pod_total(expr: e.PodTotal, program: ExprDeclarations) -> ScalarFunction:
    def evaluate(context: EvalContext) -> EvalValue:
        assert context.pod_counter is not None, f"the context has no counter for `{expr.span.text}`"
        return context.pod_counter.total(expr, program, context)

    return evaluate


def window(spans: tuple[tuple[int, int], ...], zone_name: str) -> ScalarFunction:
    zone, edges = ZoneInfo(zone_name), tuple(chain.from_iterable(spans))

    def evaluate(context: EvalContext) -> EvalValue:
        return bisect_right(edges, minute_of_week(context.now_ns, zone)) % 2 == 1

    return evaluate


def minute_of_week(now_ns: int, zone: ZoneInfo) -> int:
    """Minutes since Monday 00:00 of the zone's local time."""
    local = datetime.fromtimestamp(now_ns // 10**9, tz=UTC).astimezone(zone)
    return local.weekday() * 24 * 60 + local.hour * 60 + local.minute


# ── lists of records ───────────────────────────────────────────────────────────────────────────────────────────────


def fold(
    expr: e.ListFold, items: ScalarFunction, where: ScalarFunction | None, of_element: ScalarFunction | None
) -> ScalarFunction:
    def evaluate(context: EvalContext) -> EvalValue:
        elements = items(context)
        if elements is None:
            return None
        assert isinstance(elements, tuple), f"{expr.items.name} is {elements!r}, not a list"
        count, numbers = 0, list[Number]()
        for element in elements:
            assert isinstance(element, tuple), f"{element!r} is not a record"
            element_context = replace(context, element=element)
            if where is not None and where(element_context) is not True:
                continue
            count += 1
            number = None if of_element is None else of_element(element_context)
            if number is not None:
                assert isinstance(number, int | float), f"{number!r} is not a number"
                numbers.append(number)
        match expr.function:
            case "count":
                return count
            case "any":
                return count > 0
            case "min":
                return min(numbers, default=None)
            case "max":
                return max(numbers, default=None)
            case "sum":
                return sum_numbers(numbers, floating=expr.floating)

    return evaluate


def sum_numbers(numbers: Sequence[Number], *, floating: bool) -> Number:
    """As in `lang.ir.expr.ListFold`: whole numbers exactly, floats in their order."""
    if not floating:
        return saturate(sum(int(number) for number in numbers))
    total = 0.0
    for number in numbers:
        total += float(number)
    return clamp_finite(total)
