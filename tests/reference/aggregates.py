"""Aggregates over the candidates by brute force: from the list of current values, and of values
after placement."""

import math
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from policysched.lang.ir.aggregates import (
    GRID_BITS,
    STDDEV_GRID_BITS,
    STEP_BITS,
    grid_step_exponent,
    nested_aggregates,
)
from policysched.lang.ir.expr import Aggregate, Expr
from tests.reference.context import (
    CandidateNodes,
    ExpressionContext,
    NodeValues,
    ValueFunction,
    copy_of_usage,
    placed_copy_uid,
)
from tests.reference.values import MISSING, Number, Value, finite, saturated


def _values(
    expr: Aggregate, context: ExpressionContext, value: ValueFunction
) -> tuple[NodeValues, NodeValues]:
    """The current values, and those after placement. They depend on the context's node by nested aggregates alone."""
    cache = _candidates(context).values_cache
    if expr in cache:
        return cache[expr]
    now = _current_values(expr, context, value)
    later = _values_after_placement(expr, context, value) if expr.body_after_placement is not None else {}
    if not context.aggregate_values:
        cache[expr] = now, later
    return now, later


def _current_values(expr: Aggregate, context: ExpressionContext, value: ValueFunction) -> NodeValues:
    """The value of the aggregate's expression at each candidate."""
    return {
        name: _value_at(expr, candidate, context, value)
        for name, candidate in _candidates(context).nodes.items()
    }


def _values_after_placement(expr: Aggregate, context: ExpressionContext, value: ValueFunction) -> NodeValues:
    """The value at each candidate, with the pod placed on it."""
    candidates = _candidates(context)
    if not candidates.placed_cache:
        for name, candidate in candidates.nodes.items():
            candidates.placed_cache[name] = context_after_placement(candidate)
    return {
        name: _value_at(expr, candidate, context, value)
        for name, candidate in candidates.placed_cache.items()
    }


def _candidates(context: ExpressionContext) -> CandidateNodes:
    assert context.candidates is not None, "an aggregate needs candidates"
    return context.candidates


def _value_at(
    expr: Aggregate, candidate: ExpressionContext, context: ExpressionContext, value: ValueFunction
) -> Value:
    return value(
        expr.body,
        candidate._replace(candidates=context.candidates, aggregate_values=context.aggregate_values),
    )


def aggregate(expr: Aggregate, context: ExpressionContext, value: ValueFunction) -> Value:
    """The aggregate for the context's node. Candidates whose value is missing do not count."""
    if expr in context.aggregate_values:
        return context.aggregate_values[expr]
    assert context.node is not None and not context.after_placement, (
        f"`{expr.span.text}` needs a node before placement"
    )
    key = (expr, context.node.name if expr.body_after_placement is not None else None)
    cache = _candidates(context).aggregate_cache
    if key not in cache:
        nested: dict[Expr, Value] = {
            inner: _quantized(inner, context, value) for inner in nested_aggregates(expr)
        }
        cache[key] = _aggregate(expr, context._replace(aggregate_values=nested), value)
    return cache[key]


def _quantized(inner: Aggregate, context: ExpressionContext, value: ValueFunction) -> Value:
    """The inner aggregate for the context's node, rounded to a grid if it has many different values
    over the candidates."""
    own = aggregate(inner, context, value)
    if inner.body_after_placement is None or own is MISSING:
        return own
    numbers = _numbers(
        aggregate(inner, candidate._replace(candidates=context.candidates), value)
        for candidate in _candidates(context).nodes.values()
    )
    if len(set(numbers)) <= 2**STEP_BITS:
        return own
    exponent = grid_step_exponent(min(numbers), max(numbers))
    if exponent is None:
        return own
    assert isinstance(own, int | float), f"an aggregate that is {own!r}"
    if isinstance(own, int):
        return own >> exponent << exponent
    return math.ldexp(round(math.ldexp(own, -exponent)), exponent)


def _aggregate(expr: Aggregate, context: ExpressionContext, value: ValueFunction) -> Value:
    now, later = _values(expr, context, value)
    values = dict(now)
    if expr.body_after_placement is not None:
        assert context.node is not None, "a placement needs a node"
        values[context.node.name] = later[context.node.name]
    numbers = _numbers(values.values())
    if not numbers:
        return MISSING
    match expr.function:
        case "max":
            return max(numbers)
        case "min":
            return min(numbers)
        case "sum" if not expr.floating:
            return saturated(sum(map(int, numbers)))
    largest = max(abs(float(number)) for number in _numbers([*now.values(), *later.values()]))
    bits = STDDEV_GRID_BITS if expr.function == "stddev" else GRID_BITS
    exponent = math.frexp(largest)[1] - bits
    steps = [round(Fraction(float(number)) / Fraction(2) ** exponent) for number in numbers]
    match expr.function:
        case "sum":
            result = float(sum(steps))
        case "mean":
            result = float(sum(steps)) / len(steps)
        case _:
            squares = len(steps) * sum(step * step for step in steps) - sum(steps) ** 2
            result = math.sqrt(float(squares)) / len(steps)
    return _scaled(result, exponent)


def _numbers(values: Iterable[Value]) -> list[Number]:
    numbers: list[Number] = []
    for item in values:
        if item is not MISSING:
            assert isinstance(item, int | float), f"an aggregate of {item!r}"
            numbers.append(item)
    return numbers


def _scaled(number: float, exponent: int) -> float:
    try:
        return finite(math.ldexp(number, exponent))
    except OverflowError:
        return finite(math.copysign(math.inf, number))


def context_after_placement(context: ExpressionContext) -> ExpressionContext:
    """The context with a copy of its pod placed on its node."""
    assert context.usage is not None, "a placement needs a node"
    usage = copy_of_usage(context.usage)
    usage.add(replace(context.pod, uid=placed_copy_uid(context.pod)))
    return context._replace(usage=usage, after_placement=True)
