"""Aggregates over the candidates: as they are, and with the pod placed on each candidate in turn.

Placing the pod changes the value of one node, so that the aggregate for each candidate follows from
the total by replacing one term. To make that exact, float values are first rounded to a grid
(`lang.ir.aggregates`): integer sums do not depend on their order, and a term can be subtracted.

A value may itself read an aggregate that varies with the placement. It is then evaluated once for
each distinct number of that aggregate (`lang.ir.aggregates` keeps them few), and each candidate
takes the result of its own number.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.vector.elements import once_per_node
from policysched.evaluate.vector.functions import as_float, finite
from policysched.evaluate.vector.machine import EvalFrame, ValueVector, VectorMachine, VectorStep
from policysched.lang.ir import expr as e
from policysched.lang.ir.aggregates import (
    CANDIDATES_MAX,
    GRID_BITS,
    STDDEV_GRID_BITS,
    STEP_BITS,
    grid_step_exponent,
    nested_aggregates,
)
from policysched.lang.ir.expr import Aggregate
from policysched.lang.ir.expr_analysis import children, walk
from policysched.model.quantity import INT64_MAX, INT64_MIN

_INT64_SAFE_MAX = 2**62
_HALF_BITS = STDDEV_GRID_BITS
_HALF = (1 << _HALF_BITS) - 1
_LOW_BITS = 48
_HALF_OF_INT64 = 32


@dataclass(frozen=True, slots=True)
class AggregateTerms:
    """Values by row, and the mask of those that count; `after_placement`: with the pod placed on the row."""

    values: Array
    counted: Array
    after_placement: "AggregateTerms | None" = None

    def count(self) -> Array:
        """How many rows count: a scalar, or after placement one number per row."""
        total = np.asarray(np.count_nonzero(self.counted))
        return total if self.after_placement is None else total - self.counted + self.after_placement.counted

    def sum_with_replacement(self, values: Array, after: Array | None) -> Array:
        """The sum of integer `values` (0 where a row does not count), or for each row the sum with its
        own value replaced by `after`."""
        total = np.asarray(values.sum())
        return total if after is None else total - values + after


def aggregate(machine: VectorMachine, expr: Aggregate) -> VectorStep:
    evaluate = _plain_aggregate(machine, expr)
    inner = {nested: machine.operand(nested) for nested in nested_aggregates(expr)}
    bodies = [body for body in (expr.body, expr.body_after_placement) if body is not None]
    parts = list(_aggregate_free_parts(*bodies)) if inner else []
    shared_operands = {machine.add(part): machine.operand(part) for part in parts}

    def run(frame: EvalFrame) -> ValueVector:
        fixed = frame.fixed_aggregates.get(expr) if frame.fixed_aggregates else None
        if fixed is not None:
            return fixed
        if not inner:
            return evaluate(frame)
        shared_results = {step: operand(frame) for step, operand in shared_operands.items()}
        inner_values = {nested: operand(frame) for nested, operand in inner.items()}
        merged: ValueVector | None = None
        for rows, fixed_values in _candidate_groups(inner_values, frame):
            group_frame = replace(frame, fixed_aggregates=fixed_values, results=dict(shared_results))
            merged = _merge_rows(merged, evaluate(group_frame), rows)
        return evaluate(frame) if merged is None else merged

    return once_per_node(run)


def _plain_aggregate(machine: VectorMachine, expr: Aggregate) -> VectorStep:
    """The aggregate of a value that is the same step for all candidates."""
    before = machine.operand(expr.body)
    after = None if expr.body_after_placement is None else machine.operand(expr.body_after_placement)
    floating = expr.floating

    def run(frame: EvalFrame) -> ValueVector:
        assert frame.candidates is not None, "the frame has no candidates to aggregate over"
        terms = _terms(before(frame), frame)
        if after is not None:
            terms = AggregateTerms(terms.values, terms.counted, _terms(after(frame), frame))
        count = terms.count()
        assert int(count.max(initial=0)) <= CANDIDATES_MAX, f"more than {CANDIDATES_MAX} candidates"
        match expr.function:
            case "max":
                result = _extreme(terms, largest=True)
            case "min":
                result = _extreme(terms, largest=False)
            case "sum" if not floating:
                result = _integer_sum(terms)
            case "sum":
                result = _sum_on_grid(terms, lambda total: as_float(total))
            case "mean":
                result = _sum_on_grid(terms, lambda total: as_float(total) / np.maximum(count, 1))
            case "stddev":
                result = _standard_deviation(terms, count)
        return ValueVector(result, count > 0)

    return run


# ── nested aggregates that vary with the placement ─────────────────────────────────────────────────────────────────


_SPLITTABLE = (e.Arith, e.Call, e.Negate, e.If, e.Else, e.Compare, e.And, e.Or, e.Not)


def _aggregate_free_parts(*exprs: e.Expr) -> Iterator[e.Expr]:
    """The largest parts without an aggregate, which are equal for every group."""
    for expr in exprs:
        if not any(isinstance(part, Aggregate) for part in walk(expr)):
            yield expr
        elif isinstance(expr, _SPLITTABLE):
            yield from _aggregate_free_parts(*children(expr))


def _candidate_groups(
    aggregates: Mapping[Aggregate, ValueVector], frame: EvalFrame
) -> Iterator[tuple[Array, dict[e.Expr, ValueVector]]]:
    """The candidates grouped by equal numbers of the aggregates, with these numbers."""
    assert frame.candidates is not None, "the frame has no candidates to aggregate over"
    rows = np.flatnonzero(frame.candidates)
    varying = [
        (expr, _quantized(vector, rows)) for expr, vector in aggregates.items() if _varies_by_row(vector)
    ]
    assert len(varying) <= 1, f"{[expr.span.text for expr, _ in varying]} vary by row"
    constant: dict[e.Expr, ValueVector] = {
        expr: vector for expr, vector in aggregates.items() if not _varies_by_row(vector)
    }
    if not len(rows):
        return
    if not varying:
        yield rows, constant
        return
    expr, (values, known) = varying[0]
    for value in np.unique(values[known]):
        yield rows[known & (values == value)], {**constant, expr: ValueVector(np.asarray(value), True)}
    if not known.all():
        missing = ValueVector(np.zeros((), values.dtype), False)
        yield rows[~known], {**constant, expr: missing}


def _varies_by_row(vector: ValueVector) -> bool:
    return bool(np.ndim(vector.values) or np.ndim(vector.known))


def _quantized(vector: ValueVector, rows: Array) -> tuple[Array, Array]:
    """Values at these rows, rounded so that few are distinct, and the mask of known ones."""
    shape = (int(rows.max(initial=-1)) + 1,)
    known = np.broadcast_to(np.asarray(vector.known), max(shape, np.shape(vector.known)))[rows]
    values = np.broadcast_to(vector.values, max(shape, np.shape(vector.values)))[rows]
    known_values = values[known]
    if len(np.unique(known_values)) <= 2**STEP_BITS:
        return values, known
    exponent = grid_step_exponent(known_values.min().item(), known_values.max().item())
    if exponent is None:
        return values, known
    if values.dtype.kind == "i":
        return values >> exponent << exponent, known
    return np.ldexp(np.rint(np.ldexp(values, -exponent)), exponent), known


def _merge_rows(merged: ValueVector | None, vector: ValueVector, rows: Array) -> ValueVector:
    """Write the vector's values at these rows into `merged`."""
    size = max(np.shape(vector.values), np.shape(vector.known))
    values = np.broadcast_to(vector.values, size)
    known = np.broadcast_to(np.asarray(vector.known), size)
    if merged is None:
        return ValueVector(values.copy(), known.copy())
    assert isinstance(merged.known, np.ndarray), "copied as an array above"
    merged.values[rows], merged.known[rows] = values[rows], known[rows]
    return merged


def _terms(vector: ValueVector, frame: EvalFrame) -> AggregateTerms:
    rows = frame.view.count
    assert frame.candidates is not None
    counted = frame.candidates & np.broadcast_to(np.asarray(vector.known), (rows,))
    return AggregateTerms(np.where(counted, vector.values, 0), counted)


# ── largest and smallest ───────────────────────────────────────────────────────────────────────────────────────────


def _extreme(terms: AggregateTerms, *, largest: bool) -> Array:
    """After placement, the better of a row's own new value and the extreme of all other rows, which
    is the second best for the row that has the best."""
    values, after = terms.values, terms.after_placement
    positions = np.flatnonzero(terms.counted)
    counted_values = values[positions]
    better = np.maximum if largest else np.minimum
    if after is None:
        return np.asarray(
            better.reduce(counted_values) if len(counted_values) else np.zeros((), values.dtype)
        )
    if not len(counted_values):
        return after.values
    first = int(positions[counted_values.argmax() if largest else counted_values.argmin()])
    remaining = _without(counted_values, positions == first)
    others = np.full(len(values), values[first])
    is_only = np.zeros(len(values), np.bool_)  # where no other row counts
    if len(remaining):
        others[first] = better.reduce(remaining)
    else:
        is_only[first] = True
    best = np.where(is_only, after.values, better(others, after.values))
    return np.where(after.counted, best, others)


def _without(values: Array, excluded: Array) -> Array:
    return values[~excluded]


# ── sums ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _integer_sum(terms: AggregateTerms) -> Array:
    values = terms.values
    after = None if terms.after_placement is None else terms.after_placement.values
    largest = max(_max_magnitude(values), 0 if after is None else _max_magnitude(after))
    if largest * (len(values) + 2) < _INT64_SAFE_MAX:
        return terms.sum_with_replacement(values, after)
    # In two halves of 32 bits, each of which has room for the sum over any cluster.
    high, low = (
        terms.sum_with_replacement(half(values), None if after is None else half(after))
        for half in (_high_half, _low_half)
    )
    high = high + (low >> _HALF_OF_INT64)
    total = (high << _HALF_OF_INT64) | _low_half(low)
    largest_half = INT64_MAX >> _HALF_OF_INT64
    return np.where(high > largest_half, INT64_MAX, np.where(high < ~largest_half, INT64_MIN, total))


def _high_half(values: Array) -> Array:
    return values >> _HALF_OF_INT64


def _low_half(values: Array) -> Array:
    return values & ((1 << _HALF_OF_INT64) - 1)


def _max_magnitude(values: Array) -> int:
    return max(int(values.max(initial=0)), -int(values.min(initial=0)))


def _grid(terms: AggregateTerms, bits: int) -> tuple[Array, Array | None, int]:
    """The values as integer multiples of `2 ** exponent`, before and after placement, and the exponent."""
    values = as_float(terms.values)
    after = None if terms.after_placement is None else as_float(terms.after_placement.values)
    largest = max(_max_float_magnitude(values), 0.0 if after is None else _max_float_magnitude(after))
    exponent = int(np.frexp(largest)[1]) - bits

    def multiples(numbers: Array) -> Array:
        return np.rint(np.ldexp(numbers, -exponent)).astype(np.int64)

    return multiples(values), None if after is None else multiples(after), exponent


def _max_float_magnitude(values: Array) -> float:
    return float(np.abs(values).max(initial=0.0))


def _sum_on_grid(terms: AggregateTerms, function: Callable[[Array], Array]) -> Array:
    values, after, exponent = _grid(terms, GRID_BITS)
    with np.errstate(over="ignore"):
        return finite(np.ldexp(function(terms.sum_with_replacement(values, after)), exponent))


def _standard_deviation(terms: AggregateTerms, count: Array) -> Array:
    """`sqrt(n * sum of squares - square of the sum) / n`. The difference is exact: up to 96 bits, in halves."""
    values, after, exponent = _grid(terms, STDDEV_GRID_BITS)
    high = terms.sum_with_replacement(*_square_parts(values, after, lambda squares: squares >> _HALF_BITS))
    low = terms.sum_with_replacement(*_square_parts(values, after, lambda squares: squares & _HALF))
    total = terms.sum_with_replacement(values, after)
    total_high, total_low = total >> _HALF_BITS, total & _HALF
    # Digits of base 2 ** 30, lowest first, with carries from the first two.
    first = count * low - total_low * total_low
    second = count * high - 2 * total_high * total_low + (first >> _HALF_BITS)
    third = (second >> _HALF_BITS) - total_high * total_high
    rest = ((second & _HALF) << _HALF_BITS) | (first & _HALF)
    upper = (third << (2 * _HALF_BITS - _LOW_BITS)) | (rest >> _LOW_BITS)
    difference = as_float(upper) * float(1 << _LOW_BITS) + as_float(rest & ((1 << _LOW_BITS) - 1))
    with np.errstate(over="ignore"):
        return finite(np.ldexp(np.sqrt(difference) / np.maximum(count, 1), exponent))


def _square_parts(
    values: Array, after: Array | None, part: Callable[[Array], Array]
) -> tuple[Array, Array | None]:
    return part(values * values), None if after is None else part(after * after)
