"""Steps for numbers: arithmetic, function calls, `else` and `if`."""

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
from policysched.lang.ir.expr_analysis import is_floating

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
        first, second = left(frame), right(frame)
        known = both_known(first.known, second.known)
        if expr.op == "/":
            known = both_known(known, np.not_equal(second.values, 0))
        if not expr.floating:
            return ValueVector(operate(np.atleast_1d(first.values), np.atleast_1d(second.values)), known)
        with np.errstate(over="ignore", invalid="ignore"):
            return ValueVector(finite(operate(as_float(first.values), as_float(second.values))), known)

    return run


def arithmetic_negation(machine: VectorMachine, expr: e.Negate) -> VectorStep:
    operand, floating = machine.operand(expr.operand), is_floating(expr.operand)

    def run(frame: EvalFrame) -> ValueVector:
        vector = operand(frame)
        return ValueVector(-vector.values if floating else saturating_negate(vector.values), vector.known)

    return run


def function_call(machine: VectorMachine, expr: e.Call) -> VectorStep:
    args = [machine.operand(arg) for arg in expr.args]
    function = FUNCTIONS[expr.function]

    def run(frame: EvalFrame) -> ValueVector:
        vectors = [arg(frame) for arg in args]
        known: KnownMask = True
        for vector in vectors:
            known = both_known(known, vector.known)
        values = [as_float(vector.values) if expr.floating else vector.values for vector in vectors]
        result, defined = function(values)
        return ValueVector(result, both_known(known, defined))

    return run


def value_or_fallback(machine: VectorMachine, expr: e.Else) -> VectorStep:
    preferred, fallback = machine.operand(expr.value), machine.operand(expr.fallback)

    def run(frame: EvalFrame) -> ValueVector:
        first = preferred(frame)
        if first.known is True:
            return ValueVector(as_float(first.values), True) if expr.floating else first
        second = fallback(frame)
        values = np.where(first.known, first.values, second.values)
        known: KnownMask = True if second.known is True else np.logical_or(first.known, second.known)
        return ValueVector(as_float(values) if expr.floating else values, known)

    return run


def conditional(machine: VectorMachine, expr: e.If) -> VectorStep:
    condition = machine.operand(expr.condition)
    then, otherwise = machine.operand(expr.then), machine.operand(expr.otherwise)

    def run(frame: EvalFrame) -> ValueVector:
        chosen, first, second = condition(frame), then(frame), otherwise(frame)
        values = np.where(chosen.values, first.values, second.values)
        known: KnownMask = True
        if first.known is not True or second.known is not True:
            known = np.where(chosen.values, first.known, second.known)
        return ValueVector(as_float(values) if expr.floating else values, both_known(chosen.known, known))

    return run
