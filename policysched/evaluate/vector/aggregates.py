"""Aggregates over the candidates, for all of them at once: as they are, and with the pod placed on each in turn.

Placing the pod changes one node's value, so every candidate's aggregate follows from the whole one by replacing a term. To make that
exact, float values are brought onto a grid first (`lang.ir.aggregates`): sums of whole numbers do not depend on their order, and
what was added can be taken out again.

A value that itself reads an aggregate which moves with the pod is worked out once for each number that the candidates see of it
(`lang.ir.aggregates` keeps them few), and each candidate takes the answer for its own.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.vector.elements import ElementsView
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
from policysched.model.quantity import INT64_MAX, INT64_MIN

_INT64_SAFE_MAX = 2**62
_HALF_BITS = STDDEV_GRID_BITS
_HALF = (1 << _HALF_BITS) - 1
_LOW_BITS = 48


@dataclass(frozen=True, slots=True)
class AggregateTerms:
    """A value a row and whether it counts; `after_placement`: the same with the pod placed there."""

    values: Array
    counted: Array
    after_placement: "AggregateTerms | None" = None

    def count(self) -> Array:
        """How many count: one number, or with the pod placed one a row."""
        whole = np.asarray(np.count_nonzero(self.counted))
        return whole if self.after_placement is None else whole - self.counted + self.after_placement.counted

    def sum_with_replacement(self, values: Array, after: Array | None) -> Array:
        """The sum of whole `values` (0 where nothing counts), a row's own replaced by `after_placement`."""
        whole = np.asarray(values.sum())
        return whole if after is None else whole - values + after


def aggregate(machine: VectorMachine, expr: Aggregate) -> VectorStep:
    alone = _plain_aggregate(machine, expr)
    inner = {one: machine.operand(one) for one in nested_aggregates(expr)}
    unmoved = [
        machine.add(one) for one in _aggregate_free_parts(expr.body, *(() if expr.body_after_placement is None else (expr.body_after_placement,)))
    ] if inner else []  # fmt: skip

    def run(frame: EvalFrame) -> ValueVector:
        if frame.outer is not None:
            return _repeat_per_element(run(frame.outer), frame)
        given = frame.fixed_aggregates.get(expr) if frame.fixed_aggregates else None
        if given is not None:
            return given
        if not inner:
            return alone(frame)
        known_already = {number: machine.run(frame, number) for number in unmoved}
        found: ValueVector | None = None
        for rows, seen in _candidate_groups({one: found_of(frame) for one, found_of in inner.items()}, frame):
            inside = replace(frame, fixed_aggregates=seen, results=dict(known_already))
            found = _merge_rows(found, alone(inside), rows)
        return alone(frame) if found is None else found

    return run


def _plain_aggregate(machine: VectorMachine, expr: Aggregate) -> VectorStep:
    """The aggregate of a value that is given for all candidates."""
    before = machine.operand(expr.body)
    after = None if expr.body_after_placement is None else machine.operand(expr.body_after_placement)
    floating = expr.floating

    def run(frame: EvalFrame) -> ValueVector:
        assert frame.candidates is not None, "an aggregate is asked for where there are no candidates"
        terms = _terms(before(frame), frame)
        if after is not None:
            placed = _terms(after(frame), frame)
            terms = AggregateTerms(terms.values, terms.counted, placed)
        count = terms.count()
        assert int(count.max(initial=0)) <= CANDIDATES_MAX, f"more than {CANDIDATES_MAX} candidates"
        match expr.function:
            case "max":
                found = _extreme(terms, largest=True)
            case "min":
                found = _extreme(terms, largest=False)
            case "sum" if not floating:
                found = _integer_sum(terms)
            case "sum":
                found = _sum_on_grid(terms, lambda total: as_float(total))
            case "mean":
                found = _sum_on_grid(terms, lambda total: as_float(total) / np.maximum(count, 1))
            case "stddev":
                found = _standard_deviation(terms, count)
        return ValueVector(found, count > 0)

    return run


def _repeat_per_element(found: ValueVector, frame: EvalFrame) -> ValueVector:
    """What a node's value is, at each element of its list."""
    assert isinstance(frame.view, ElementsView), "only lists are looked through in the midst of a run"
    owners = frame.view.owners
    values = found.values[owners] if found.values.ndim else found.values
    known = found.known
    return ValueVector(values, known[owners] if isinstance(known, np.ndarray) and known.ndim else known)


# ── numbers in the value that move with the pod ────────────────────────────────────────────────────────────────────


_SPLITTABLE = (e.Arith, e.Call, e.Negate, e.If, e.Else, e.Compare, e.And, e.Or, e.Not)


def _aggregate_free_parts(*exprs: e.Expr) -> Iterator[e.Expr]:
    """The largest parts that no aggregate is in: the same for every group."""
    for one in exprs:
        if not any(isinstance(part, Aggregate) for part in e.walk(one)):
            yield one
        elif isinstance(one, _SPLITTABLE):
            yield from _aggregate_free_parts(*e.children(one))


def _candidate_groups(
    seen: Mapping[Aggregate, ValueVector], frame: EvalFrame
) -> Iterator[tuple[Array, dict[e.Expr, ValueVector]]]:
    """The candidates that see the same numbers, and what these are."""
    assert frame.candidates is not None, "an aggregate is asked for where there are no candidates"
    rows = np.flatnonzero(frame.candidates)
    moving = [(one, _quantized(found, rows)) for one, found in seen.items() if _varies_by_row(found)]
    assert len(moving) <= 1, f"{[one.span.text for one, _ in moving]} move with the pod"
    steady: dict[e.Expr, ValueVector] = {
        one: found for one, found in seen.items() if not _varies_by_row(found)
    }
    if not len(rows):
        return
    if not moving:
        yield rows, steady
        return
    expr, (values, known) = moving[0]
    for value in np.unique(values[known]):
        yield rows[known & (values == value)], {**steady, expr: ValueVector(np.asarray(value), True)}
    if not known.all():
        nothing = ValueVector(np.zeros((), values.dtype), False)
        yield rows[~known], {**steady, expr: nothing}


def _varies_by_row(found: ValueVector) -> bool:
    return bool(np.ndim(found.values) or np.ndim(found.known))


def _quantized(found: ValueVector, rows: Array) -> tuple[Array, Array]:
    """At these rows: values and whether they are known, few enough."""
    shape = (int(rows.max(initial=-1)) + 1,)
    known = np.broadcast_to(np.asarray(found.known), max(shape, np.shape(found.known)))[rows]
    values = np.broadcast_to(found.values, max(shape, np.shape(found.values)))[rows]
    told = values[known]
    if len(np.unique(told)) <= 2**STEP_BITS:
        return values, known
    exponent = grid_step_exponent(told.min().item(), told.max().item())
    if exponent is None:
        return values, known
    if values.dtype.kind == "i":
        return values >> exponent << exponent, known
    return np.ldexp(np.rint(np.ldexp(values, -exponent)), exponent), known


def _merge_rows(before: ValueVector | None, found: ValueVector, rows: Array) -> ValueVector:
    """`found` at these rows, over what is there of others."""
    size = max(np.shape(found.values), np.shape(found.known))
    values = np.broadcast_to(found.values, size)
    known = np.broadcast_to(np.asarray(found.known), size)
    if before is None:
        return ValueVector(values.copy(), known.copy())
    assert isinstance(before.known, np.ndarray), "laid over as an array"
    before.values[rows], before.known[rows] = values[rows], known[rows]
    return before


def _terms(found: ValueVector, frame: EvalFrame) -> AggregateTerms:
    rows = frame.view.count
    assert frame.candidates is not None
    counted = frame.candidates & np.broadcast_to(np.asarray(found.known), (rows,))
    return AggregateTerms(np.where(counted, found.values, 0), counted)


# ── largest and smallest ───────────────────────────────────────────────────────────────────────────────────────────


def _extreme(terms: AggregateTerms, *, largest: bool) -> Array:
    """With the pod placed: a row's own new value, or the extreme of all others, which is the second of all where the row itself
    has the first."""
    values, after = terms.values, terms.after_placement
    places = np.flatnonzero(terms.counted)
    ordered = values[places]
    better = np.maximum if largest else np.minimum
    if after is None:
        return np.asarray(better.reduce(ordered) if len(ordered) else np.zeros((), values.dtype))
    if not len(ordered):
        return after.values
    first = int(places[ordered.argmax() if largest else ordered.argmin()])
    left = _without(ordered, places == first)
    others = np.full(len(values), values[first])
    alone = np.zeros(len(values), np.bool_)  # where no other counts
    if len(left):
        others[first] = better.reduce(left)
    else:
        alone[first] = True
    best = np.where(alone, after.values, better(others, after.values))
    return np.where(after.counted, best, others)


def _without(values: Array, one: Array) -> Array:
    return values[~one]


# ── sums ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _integer_sum(terms: AggregateTerms) -> Array:
    values = terms.values
    after = None if terms.after_placement is None else terms.after_placement.values
    largest = max(_max_magnitude(values), 0 if after is None else _max_magnitude(after))
    if largest * (len(values) + 2) < _INT64_SAFE_MAX:
        return terms.sum_with_replacement(values, after)
    exact = terms.sum_with_replacement(values.astype(object), None if after is None else after.astype(object))
    return np.asarray(np.clip(exact, INT64_MIN, INT64_MAX)).astype(np.int64)


def _max_magnitude(values: Array) -> int:
    return max(int(values.max(initial=0)), -int(values.min(initial=0)))


def _grid(terms: AggregateTerms, bits: int) -> tuple[Array, Array | None, int]:
    """The values as whole multiples of `2 ** exponent`, before and after."""
    values = as_float(terms.values)
    after = None if terms.after_placement is None else as_float(terms.after_placement.values)
    largest = max(_max_float_magnitude(values), 0.0 if after is None else _max_float_magnitude(after))
    exponent = int(np.frexp(largest)[1]) - bits

    def whole(numbers: Array) -> Array:
        return np.rint(np.ldexp(numbers, -exponent)).astype(np.int64)

    return whole(values), None if after is None else whole(after), exponent


def _max_float_magnitude(values: Array) -> float:
    return float(np.abs(values).max(initial=0.0))


def _sum_on_grid(terms: AggregateTerms, made: Callable[[Array], Array]) -> Array:
    values, after, exponent = _grid(terms, GRID_BITS)
    with np.errstate(over="ignore"):
        return finite(np.ldexp(made(terms.sum_with_replacement(values, after)), exponent))


def _standard_deviation(terms: AggregateTerms, count: Array) -> Array:
    """`sqrt(n * sum of squares - square of the sum) / n`, the difference exact: it has up to 96 bits, held in halves."""
    values, after, exponent = _grid(terms, STDDEV_GRID_BITS)
    high = terms.sum_with_replacement(*_square_parts(values, after, lambda squares: squares >> _HALF_BITS))
    low = terms.sum_with_replacement(*_square_parts(values, after, lambda squares: squares & _HALF))
    total = terms.sum_with_replacement(values, after)
    total_high, total_low = total >> _HALF_BITS, total & _HALF
    # In digits of base 2 ** 30, lowest first; the first two are carried.
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
