"""Numbers as steps: sums, products, functions, and which of two values stands."""

from collections.abc import Callable

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.saturating import (
    floor_divide,
    negated,
    saturating_add,
    saturating_multiply,
    saturating_subtract,
)
from policysched.evaluate.vector.functions import FUNCTIONS, as_float, finite
from policysched.evaluate.vector.machine import Frame, Known, Machine, Step, Vector, both
from policysched.lang.ir import expr as e

_WHOLE: dict[str, Callable[[Array, Array], Array]] = {
    "+": saturating_add,
    "-": saturating_subtract,
    "*": saturating_multiply,
    "/": floor_divide,
}
_FLOATING: dict[str, Callable[[Array, Array], Array]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": lambda left, right: np.divide(left, np.where(right == 0, 1.0, right)),
}


def arithmetic(machine: Machine, expr: e.Arith) -> Step:
    left, right = machine.operand(expr.left), machine.operand(expr.right)
    operate = (_FLOATING if expr.floating else _WHOLE)[expr.op]

    def run(frame: Frame) -> Vector:
        one, two = left(frame), right(frame)
        known = both(one.known, two.known)
        if expr.op == "/":
            known = both(known, np.not_equal(two.values, 0))
        if not expr.floating:
            return Vector(operate(np.atleast_1d(one.values), np.atleast_1d(two.values)), known)
        with np.errstate(over="ignore", invalid="ignore"):
            return Vector(finite(operate(as_float(one.values), as_float(two.values))), known)

    return run


def negative(machine: Machine, expr: e.Negate) -> Step:
    operand, floating = machine.operand(expr.operand), e.is_floating(expr.operand)

    def run(frame: Frame) -> Vector:
        found = operand(frame)
        return Vector(-found.values if floating else negated(found.values), found.known)

    return run


def call(machine: Machine, expr: e.Call) -> Step:
    args = [machine.operand(arg) for arg in expr.args]
    function = FUNCTIONS[expr.function]

    def run(frame: Frame) -> Vector:
        found = [arg(frame) for arg in args]
        known: Known = True
        for one in found:
            known = both(known, one.known)
        values = [as_float(one.values) if expr.floating else one.values for one in found]
        result, inside = function(values)
        return Vector(result, both(known, inside))

    return run


def otherwise(machine: Machine, expr: e.Else) -> Step:
    wanted, fallback = machine.operand(expr.value), machine.operand(expr.fallback)

    def run(frame: Frame) -> Vector:
        one = wanted(frame)
        if one.known is True:
            return Vector(as_float(one.values), True) if expr.floating else one
        two = fallback(frame)
        values = np.where(one.known, one.values, two.values)
        known: Known = True if two.known is True else np.logical_or(one.known, two.known)
        return Vector(as_float(values) if expr.floating else values, known)

    return run


def conditional(machine: Machine, expr: e.If) -> Step:
    condition = machine.operand(expr.condition)
    then, other = machine.operand(expr.then), machine.operand(expr.otherwise)

    def run(frame: Frame) -> Vector:
        chosen, one, two = condition(frame), then(frame), other(frame)
        values = np.where(chosen.values, one.values, two.values)
        known: Known = True
        if one.known is not True or two.known is not True:
            known = np.where(chosen.values, one.known, two.known)
        return Vector(as_float(values) if expr.floating else values, both(chosen.known, known))

    return run
