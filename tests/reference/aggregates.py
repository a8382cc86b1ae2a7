"""Aggregates over the candidates by brute force: the list of values, and with the pod placed the list once more."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction

from policysched.cluster.usage import Usage
from policysched.lang.ir.aggregates import GRID_BITS, SQUARED_BITS, STEP_BITS, seen_by_all, step
from policysched.lang.ir.expr import Aggregate, Expr
from policysched.model.objects import NodeName
from tests.reference.context import Context, once_more
from tests.reference.values import MISSING, Number, Value, finite, saturated


def values_now(expr: Aggregate, context: Context) -> dict[NodeName, Value]:
    """Of the aggregate's expression at each candidate."""
    return {name: _value_at(expr, at, context) for name, at in _nodes(context).items()}


def values_placed(expr: Aggregate, context: Context) -> dict[NodeName, Value]:
    """The same, each with the pod on that candidate."""
    return {name: _value_at(expr, with_pod_placed(at), context) for name, at in _nodes(context).items()}


def _nodes(context: Context) -> Mapping[NodeName, Context]:
    assert context.candidates is not None, "an aggregate is asked for where there are no candidates"
    return context.candidates.nodes


def _answers(context: Context) -> dict[tuple[Expr, NodeName | None], Value]:
    assert context.candidates is not None, "an aggregate is asked for where there are no candidates"
    return context.candidates.answers


def _value_at(expr: Aggregate, at: Context, context: Context) -> Value:
    from tests.reference.expressions import value  # each is made of the other

    return value(expr.body, replace(at, candidates=context.candidates, given=context.given))


def aggregate(expr: Aggregate, context: Context) -> Value:
    """The aggregate as it is seen from the context's node. Where the expression is missing, a candidate does not count."""
    if expr in context.given:
        return context.given[expr]
    assert context.node is not None and not context.placing, f"`{expr.span.text}` moves with the pod"
    asked = (expr, context.node.name if expr.placed is not None else None)
    answers = _answers(context)
    if asked not in answers:
        given: dict[Expr, Value] = {one: _stepped(one, context) for one in seen_by_all(expr)}
        answers[asked] = _aggregate(expr, replace(context, given=given))
    return answers[asked]


def _stepped(inner: Aggregate, context: Context) -> Value:
    """What the candidate sees of it, or the step below or beside that where candidates see many numbers."""
    own = aggregate(inner, context)
    if inner.placed is None or own is MISSING:
        return own
    told = _numbers(
        aggregate(inner, replace(at, candidates=context.candidates)) for at in _nodes(context).values()
    )
    if len(set(told)) <= 2**STEP_BITS:
        return own
    exponent = step(min(told), max(told))
    if exponent is None:
        return own
    assert isinstance(own, int | float), f"an aggregate that is {own!r}"
    if isinstance(own, int):
        return own >> exponent << exponent
    return math.ldexp(round(math.ldexp(own, -exponent)), exponent)


def _aggregate(expr: Aggregate, context: Context) -> Value:
    now = values_now(expr, context)
    later = values_placed(expr, context) if expr.placed is not None else {}
    seen = dict(now)
    if expr.placed is not None:
        assert context.node is not None, "the pod is placed on a node"
        seen[context.node.name] = later[context.node.name]
    numbers = _numbers(seen.values())
    if not numbers:
        return MISSING
    match expr.function:
        case "max":
            return max(numbers)
        case "min":
            return min(numbers)
        case "sum" if not expr.floating:
            return saturated(sum(map(int, numbers)))
    largest = max(abs(float(one)) for one in _numbers([*now.values(), *later.values()]))
    bits = SQUARED_BITS if expr.function == "stddev" else GRID_BITS
    exponent = math.frexp(largest)[1] - bits
    steps = [round(Fraction(float(one)) / Fraction(2) ** exponent) for one in numbers]
    match expr.function:
        case "sum":
            found = float(sum(steps))
        case "mean":
            found = float(sum(steps)) / len(steps)
        case _:
            squares = len(steps) * sum(one * one for one in steps) - sum(steps) ** 2
            found = math.sqrt(float(squares)) / len(steps)
    return _scaled(found, exponent)


def _numbers(values: Iterable[Value]) -> list[Number]:
    found: list[Number] = []
    for one in values:
        if one is not MISSING:
            assert isinstance(one, int | float), f"an aggregate of {one!r}"
            found.append(one)
    return found


def _scaled(number: float, exponent: int) -> float:
    try:
        return finite(math.ldexp(number, exponent))
    except OverflowError:
        return finite(math.copysign(math.inf, number))


def with_pod_placed(context: Context) -> Context:
    """The context's node with one more pod, such as this one, on it."""
    assert context.usage is not None, "the pod is placed on a node"
    before = context.usage
    usage = Usage(
        dict(before.requested),
        before.scoring_cpu_milli,
        before.scoring_memory_bytes,
        dict(before.ports),
        dict(before.pods),
    )
    usage.add(replace(context.pod, uid=once_more(context.pod)))
    return replace(context, usage=usage, placing=True)
