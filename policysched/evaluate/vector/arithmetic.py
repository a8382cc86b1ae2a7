"""Numbers as steps: sums, products, functions, and which of two values stands."""

from collections.abc import Callable

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.saturating_arithmetic import (
    saturating_add,
    saturating_floor_divide,
    saturating_multiply,
    saturating_negate,
    saturating_subtract,
)
from policysched.evaluate.vector.functions import FUNCTIONS, as_float, finite
from policysched.evaluate.vector.machine import (
    EvalFrame,
    KnownMask,
    ValueVector,
    VectorMachine,
    VectorStep,
    both_known,
)
from policysched.lang.ir import expr as e

_INTEGER: dict[str, Callable[[Array, Array], Array]] = {
    "+": saturating_add,
    "-": saturating_subtract,
    "*": saturating_multiply,
    "/": saturating_floor_divide,
}
_FLOATING: dict[str, Callable[[Array, Array], Array]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": lambda left, right: np.divide(left, np.where(right == 0, 1.0, right)),
}


def binary_arithmetic(machine: VectorMachine, expr: e.Arith) -> VectorStep:
    left, right = machine.operand(expr.left), machine.operand(expr.right)
    operate = (_FLOATING if expr.floating else _INTEGER)[expr.op]

    def run(frame: EvalFrame) -> ValueVector:
        one, two = left(frame), right(frame)
        known = both_known(one.known, two.known)
        if expr.op == "/":
            known = both_known(known, np.not_equal(two.values, 0))
        if not expr.floating:
            return ValueVector(operate(np.atleast_1d(one.values), np.atleast_1d(two.values)), known)
        with np.errstate(over="ignore", invalid="ignore"):
            return ValueVector(finite(operate(as_float(one.values), as_float(two.values))), known)

    return run


def arithmetic_negation(machine: VectorMachine, expr: e.Negate) -> VectorStep:
    operand, floating = machine.operand(expr.operand), e.is_floating(expr.operand)

    def run(frame: EvalFrame) -> ValueVector:
        found = operand(frame)
        return ValueVector(-found.values if floating else saturating_negate(found.values), found.known)

    return run


def function_call(machine: VectorMachine, expr: e.Call) -> VectorStep:
    args = [machine.operand(arg) for arg in expr.args]
    function = FUNCTIONS[expr.function]

    def run(frame: EvalFrame) -> ValueVector:
        found = [arg(frame) for arg in args]
        known: KnownMask = True
        for one in found:
            known = both_known(known, one.known)
        values = [as_float(one.values) if expr.floating else one.values for one in found]
        result, inside = function(values)
        return ValueVector(result, both_known(known, inside))

    return run


def value_or_fallback(machine: VectorMachine, expr: e.Else) -> VectorStep:
    wanted, fallback = machine.operand(expr.value), machine.operand(expr.fallback)

    def run(frame: EvalFrame) -> ValueVector:
        one = wanted(frame)
        if one.known is True:
            return ValueVector(as_float(one.values), True) if expr.floating else one
        two = fallback(frame)
        values = np.where(one.known, one.values, two.values)
        known: KnownMask = True if two.known is True else np.logical_or(one.known, two.known)
        return ValueVector(as_float(values) if expr.floating else values, known)

    return run


def conditional(machine: VectorMachine, expr: e.If) -> VectorStep:
    condition = machine.operand(expr.condition)
    then, other = machine.operand(expr.then), machine.operand(expr.otherwise)

    def run(frame: EvalFrame) -> ValueVector:
        chosen, one, two = condition(frame), then(frame), other(frame)
        values = np.where(chosen.values, one.values, two.values)
        known: KnownMask = True
        if one.known is not True or two.known is not True:
            known = np.where(chosen.values, one.known, two.known)
        return ValueVector(as_float(values) if expr.floating else values, both_known(chosen.known, known))

    return run
