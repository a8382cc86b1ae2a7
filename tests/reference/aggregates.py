"""Aggregates over the candidates by brute force: the list of values, and with the pod placed the list once more."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction

from policysched.cluster.usage import NodeUsage
from policysched.lang.ir.aggregates import (
    GRID_BITS,
    STDDEV_GRID_BITS,
    STEP_BITS,
    grid_step_exponent,
    nested_aggregates,
)
from policysched.lang.ir.expr import Aggregate, Expr
from policysched.model.identifiers import NodeName
from tests.reference.context import ExpressionContext, placed_copy_uid
from tests.reference.values import MISSING, Number, Value, finite, saturated


def current_values(expr: Aggregate, context: ExpressionContext) -> dict[NodeName, Value]:
    """Of the aggregate's expression at each candidate."""
    return {name: _value_at(expr, at, context) for name, at in _candidate_contexts(context).items()}


def values_after_placement(expr: Aggregate, context: ExpressionContext) -> dict[NodeName, Value]:
    """The same, each with the pod on that candidate."""
    return {
        name: _value_at(expr, context_after_placement(at), context)
        for name, at in _candidate_contexts(context).items()
    }


def _candidate_contexts(context: ExpressionContext) -> Mapping[NodeName, ExpressionContext]:
    assert context.candidates is not None, "an aggregate is asked for where there are no candidates"
    return context.candidates.nodes


def _aggregate_cache(context: ExpressionContext) -> dict[tuple[Expr, NodeName | None], Value]:
    assert context.candidates is not None, "an aggregate is asked for where there are no candidates"
    return context.candidates.aggregate_cache


def _value_at(expr: Aggregate, at: ExpressionContext, context: ExpressionContext) -> Value:
    from tests.reference.expressions import value  # each is made of the other

    return value(
        expr.body, replace(at, candidates=context.candidates, aggregate_values=context.aggregate_values)
    )


def aggregate(expr: Aggregate, context: ExpressionContext) -> Value:
    """The aggregate as it is seen from the context's node. Where the expression is missing, a candidate does not count."""
    if expr in context.aggregate_values:
        return context.aggregate_values[expr]
    assert context.node is not None and not context.after_placement, f"`{expr.span.text}` moves with the pod"
    asked = (expr, context.node.name if expr.body_after_placement is not None else None)
    answers = _aggregate_cache(context)
    if asked not in answers:
        given: dict[Expr, Value] = {one: _quantized(one, context) for one in nested_aggregates(expr)}
        answers[asked] = _aggregate(expr, replace(context, aggregate_values=given))
    return answers[asked]


def _quantized(inner: Aggregate, context: ExpressionContext) -> Value:
    """What the candidate sees of it, or the step below or beside that where candidates see many numbers."""
    own = aggregate(inner, context)
    if inner.body_after_placement is None or own is MISSING:
        return own
    told = _numbers(
        aggregate(inner, replace(at, candidates=context.candidates))
        for at in _candidate_contexts(context).values()
    )
    if len(set(told)) <= 2**STEP_BITS:
        return own
    exponent = grid_step_exponent(min(told), max(told))
    if exponent is None:
        return own
    assert isinstance(own, int | float), f"an aggregate that is {own!r}"
    if isinstance(own, int):
        return own >> exponent << exponent
    return math.ldexp(round(math.ldexp(own, -exponent)), exponent)


def _aggregate(expr: Aggregate, context: ExpressionContext) -> Value:
    now = current_values(expr, context)
    later = values_after_placement(expr, context) if expr.body_after_placement is not None else {}
    seen = dict(now)
    if expr.body_after_placement is not None:
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
    bits = STDDEV_GRID_BITS if expr.function == "stddev" else GRID_BITS
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


def context_after_placement(context: ExpressionContext) -> ExpressionContext:
    """The context's node with one more pod, such as this one, on it."""
    assert context.usage is not None, "the pod is placed on a node"
    before = context.usage
    usage = NodeUsage(
        dict(before.requested),
        before.scoring_cpu_milli,
        before.scoring_memory_bytes,
        dict(before.ports),
        dict(before.pods),
    )
    usage.add(replace(context.pod, uid=placed_copy_uid(context.pod)))
    return replace(context, usage=usage, after_placement=True)
