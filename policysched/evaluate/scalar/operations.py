"""What expressions do, as plain functions made of plain functions.

What is missing goes through: nothing is worked out of it, unless one of the others settles the matter.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
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
    negate,
    saturate,
    whole_total,
)


def logical_not(operand: ScalarFunction) -> ScalarFunction:
    def value(seen: EvalContext) -> EvalValue:
        found = operand(seen)
        return None if found is None else not found

    return value


def logical_connective(items: list[ScalarFunction], *, decisive: bool) -> ScalarFunction:
    """Kleene: one decisive item settles it, whatever else is missing."""

    def value(seen: EvalContext) -> EvalValue:
        missing = False
        for item in items:
            found = item(seen)
            if found is None:
                missing = True
            elif found is decisive:
                return decisive
        return None if missing else not decisive

    return value


def comparison(expr: e.Compare, left: ScalarFunction, right: ScalarFunction) -> ScalarFunction:
    floating = e.is_floating(expr.left) or e.is_floating(expr.right)

    def value(seen: EvalContext) -> EvalValue:
        one, two = left(seen), right(seen)
        if one is None or two is None:
            return None
        assert not isinstance(one, tuple) and not isinstance(two, tuple), f"{one!r} {expr.op} {two!r}"
        return compare(expr.op, float(one) if floating else one, two)

    return value


def membership(expr: e.In, item: ScalarFunction, options: ScalarFunction) -> ScalarFunction:
    element = e.type_of(expr.options).element
    floating = e.is_floating(expr.item) or (element is not None and element.is_float64)

    def value(seen: EvalContext) -> EvalValue:
        one, among = item(seen), options(seen)
        if one is None or among is None:
            return None
        assert isinstance(among, tuple) and not isinstance(one, tuple), f"{one!r} in {among!r}"
        return (
            float(one) in [float(option) for option in among if isinstance(option, int | float)]
            if floating
            else one in among
        )

    return value


def binary_arithmetic(expr: e.Arith, left: ScalarFunction, right: ScalarFunction) -> ScalarFunction:
    def value(seen: EvalContext) -> EvalValue:
        one, two = left(seen), right(seen)
        if one is None or two is None:
            return None
        return arithmetic(expr.op, expect_number(one), expect_number(two), floating=expr.floating)

    return value


def arithmetic_negation(operand: ScalarFunction) -> ScalarFunction:
    def value(seen: EvalContext) -> EvalValue:
        found = operand(seen)
        return None if found is None else negate(expect_number(found))

    return value


def function_call(expr: e.Call, args: list[ScalarFunction]) -> ScalarFunction:
    def value(seen: EvalContext) -> EvalValue:
        numbers = []
        for arg in args:
            found = arg(seen)
            if found is None:
                return None
            numbers.append(expect_number(found))
        return call(expr.function, numbers, floating=expr.floating)

    return value


def rank(item: ScalarFunction, order: tuple[str, ...]) -> ScalarFunction:
    places = {text: place for place, text in reversed(list(enumerate(order)))}

    def value(seen: EvalContext) -> EvalValue:
        found = item(seen)
        return None if found is None else places.get(str(found), len(order))

    return value


def value_or_fallback(expr: e.Else, wanted: ScalarFunction, fallback: ScalarFunction) -> ScalarFunction:
    def value(seen: EvalContext) -> EvalValue:
        found = wanted(seen)
        if found is None:
            found = fallback(seen)
        return float(expect_number(found)) if expr.floating and found is not None else found

    return value


def conditional(
    expr: e.If, condition: ScalarFunction, then: ScalarFunction, otherwise: ScalarFunction
) -> ScalarFunction:
    def value(seen: EvalContext) -> EvalValue:
        chosen = condition(seen)
        if chosen is None:
            return None
        found = then(seen) if chosen else otherwise(seen)
        return float(expect_number(found)) if expr.floating and found is not None else found

    return value


def pod_count(where: ScalarFunction | None) -> ScalarFunction:
    def value(seen: EvalContext) -> EvalValue:
        assert seen.usage is not None, "pods are counted where there is no node"
        if where is None:
            return len(seen.usage.pods)
        return sum(where(seen.with_other_pod(other)) is True for other in seen.usage.pods.values())

    return value


def pod_sum(expr: e.SumPodsOnNode, amount: ScalarFunction) -> ScalarFunction:
    floating = expr.type.is_float64

    def value(seen: EvalContext) -> EvalValue:
        assert seen.usage is not None, "requests are summed where there is no node"
        others = seen.usage.pods.values()
        return whole_total(
            (requested_amount(amount, seen.with_other_pod(other)) for other in others), floating=floating
        )

    return value


def requested_amount(amount: ScalarFunction, seen: EvalContext) -> int:
    """What the pod that is being counted was promised, in whole units of the amount, never less than 0."""
    found = amount(seen)
    return 0 if found is None else max(0, ceil(expect_number(found)))


def pod_count_anywhere(expr: e.CountPodsInCluster, program: ExprDeclarations) -> ScalarFunction:
    def value(seen: EvalContext) -> EvalValue:
        assert seen.pod_counter is not None, f"`{expr.span.text}` is asked where no pods are known"
        return seen.pod_counter.count(expr, program, seen)

    return value


def window(spans: tuple[tuple[int, int], ...], zone: str) -> ScalarFunction:
    place = ZoneInfo(zone)

    def value(seen: EvalContext) -> EvalValue:
        minute = minute_of_week(seen.now_ns, place)
        return any(start <= minute < end for start, end in spans)

    return value


def minute_of_week(now_ns: int, zone: ZoneInfo) -> int:
    """Minutes since Monday 00:00 of the zone's local time."""
    local = datetime.fromtimestamp(now_ns // 10**9, tz=UTC).astimezone(zone)
    return local.weekday() * 24 * 60 + local.hour * 60 + local.minute


# ── lists of records ───────────────────────────────────────────────────────────────────────────────────────────────


def fold(
    expr: e.ListFold, items: ScalarFunction, where: ScalarFunction | None, of_element: ScalarFunction | None
) -> ScalarFunction:
    def value(seen: EvalContext) -> EvalValue:
        listed = items(seen)
        if listed is None:
            return None
        assert isinstance(listed, tuple), f"{expr.items.name} is {listed!r}, and no list"
        count, found = 0, list[Number]()
        for element in listed:
            assert isinstance(element, tuple), f"{element!r} is no record"
            inside = replace(seen, element=element)
            if where is not None and where(inside) is not True:
                continue
            count += 1
            one = None if of_element is None else of_element(inside)
            if one is not None:
                assert isinstance(one, int | float), f"{one!r} is no number"
                found.append(one)
        match expr.function:
            case "count":
                return count
            case "any":
                return count > 0
            case "min":
                return min(found, default=None)
            case "max":
                return max(found, default=None)
            case "sum":
                return sum_numbers(found, floating=expr.floating)

    return value


def sum_numbers(numbers: Sequence[Number], *, floating: bool) -> Number:
    """As `lang.ir.expr.Fold` says: whole numbers exactly, floats in their order."""
    if not floating:
        return saturate(sum(int(one) for one in numbers))
    added = 0.0
    for one in numbers:
        added += float(one)
    return clamp_finite(added)
