"""What expressions do, as plain functions made of plain functions.

What is missing goes through: nothing is worked out of it, unless one of the others settles the matter.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import ceil
from zoneinfo import ZoneInfo

from policysched.evaluate.scalar.eval_context import Declarations, Function, Seen, Value, number
from policysched.lang.ir import expr as e
from policysched.lang.ir.arithmetic import (
    Number,
    arithmetic,
    call,
    compare,
    finite,
    negate,
    saturate,
    whole_total,
)


def negated(operand: Function) -> Function:
    def value(seen: Seen) -> Value:
        found = operand(seen)
        return None if found is None else not found

    return value


def junction(items: list[Function], *, decisive: bool) -> Function:
    """Kleene: one decisive item settles it, whatever else is missing."""

    def value(seen: Seen) -> Value:
        missing = False
        for item in items:
            found = item(seen)
            if found is None:
                missing = True
            elif found is decisive:
                return decisive
        return None if missing else not decisive

    return value


def comparison(expr: e.Compare, left: Function, right: Function) -> Function:
    floating = e.is_floating(expr.left) or e.is_floating(expr.right)

    def value(seen: Seen) -> Value:
        one, two = left(seen), right(seen)
        if one is None or two is None:
            return None
        assert not isinstance(one, tuple) and not isinstance(two, tuple), f"{one!r} {expr.op} {two!r}"
        return compare(expr.op, float(one) if floating else one, two)

    return value


def containment(expr: e.In, item: Function, options: Function) -> Function:
    element = e.type_of(expr.options).element
    floating = e.is_floating(expr.item) or (element is not None and element.held_as_float)

    def value(seen: Seen) -> Value:
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


def calculation(expr: e.Arith, left: Function, right: Function) -> Function:
    def value(seen: Seen) -> Value:
        one, two = left(seen), right(seen)
        if one is None or two is None:
            return None
        return arithmetic(expr.op, number(one), number(two), floating=expr.floating)

    return value


def opposite(operand: Function) -> Function:
    def value(seen: Seen) -> Value:
        found = operand(seen)
        return None if found is None else negate(number(found))

    return value


def function_call(expr: e.Call, args: list[Function]) -> Function:
    def value(seen: Seen) -> Value:
        numbers = []
        for arg in args:
            found = arg(seen)
            if found is None:
                return None
            numbers.append(number(found))
        return call(expr.function, numbers, floating=expr.floating)

    return value


def rank(item: Function, order: tuple[str, ...]) -> Function:
    places = {text: place for place, text in reversed(list(enumerate(order)))}

    def value(seen: Seen) -> Value:
        found = item(seen)
        return None if found is None else places.get(str(found), len(order))

    return value


def with_fallback(expr: e.Else, wanted: Function, fallback: Function) -> Function:
    def value(seen: Seen) -> Value:
        found = wanted(seen)
        if found is None:
            found = fallback(seen)
        return float(number(found)) if expr.floating and found is not None else found

    return value


def choice(expr: e.If, condition: Function, then: Function, otherwise: Function) -> Function:
    def value(seen: Seen) -> Value:
        chosen = condition(seen)
        if chosen is None:
            return None
        found = then(seen) if chosen else otherwise(seen)
        return float(number(found)) if expr.floating and found is not None else found

    return value


def pod_count(where: Function | None) -> Function:
    def value(seen: Seen) -> Value:
        assert seen.usage is not None, "pods are counted where there is no node"
        if where is None:
            return len(seen.usage.pods)
        return sum(where(seen.counting(other)) is True for other in seen.usage.pods.values())

    return value


def pod_sum(expr: e.SumPods, amount: Function) -> Function:
    floating = expr.type.held_as_float

    def value(seen: Seen) -> Value:
        assert seen.usage is not None, "requests are summed where there is no node"
        others = seen.usage.pods.values()
        return whole_total((promised(amount, seen.counting(other)) for other in others), floating=floating)

    return value


def promised(amount: Function, seen: Seen) -> int:
    """What the pod that is being counted was promised, in whole units of the amount, never less than 0."""
    found = amount(seen)
    return 0 if found is None else max(0, ceil(number(found)))


def pod_count_anywhere(expr: e.CountAnywhere, program: Declarations) -> Function:
    def value(seen: Seen) -> Value:
        assert seen.everybody is not None, f"`{expr.span.text}` is asked where no pods are known"
        return seen.everybody.count(expr, program, seen)

    return value


def window(spans: tuple[tuple[int, int], ...], zone: str) -> Function:
    place = ZoneInfo(zone)

    def value(seen: Seen) -> Value:
        minute = minute_of_week(seen.now_ns, place)
        return any(start <= minute < end for start, end in spans)

    return value


def minute_of_week(now_ns: int, zone: ZoneInfo) -> int:
    """Minutes since Monday 00:00 of the zone's local time."""
    local = datetime.fromtimestamp(now_ns // 10**9, tz=UTC).astimezone(zone)
    return local.weekday() * 24 * 60 + local.hour * 60 + local.minute


# ── lists of records ───────────────────────────────────────────────────────────────────────────────────────────────


def fold(expr: e.Fold, items: Function, where: Function | None, of_element: Function | None) -> Function:
    def value(seen: Seen) -> Value:
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
                return total(found, floating=expr.floating)

    return value


def total(numbers: Sequence[Number], *, floating: bool) -> Number:
    """As `lang.ir.expr.Fold` says: whole numbers exactly, floats in their order."""
    if not floating:
        return saturate(sum(int(one) for one in numbers))
    added = 0.0
    for one in numbers:
        added += float(one)
    return finite(added)
