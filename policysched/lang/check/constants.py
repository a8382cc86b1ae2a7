"""Constant expressions: values of `let`, `param` and block parameters that depend on nothing."""

from policysched.lang.check.bare_numbers import lint_number
from policysched.lang.check.expression_checker import conform
from policysched.lang.check.expressions import check_expression
from policysched.lang.check.presence import check_always_present
from policysched.lang.check.scope import CONSTANT, Scope
from policysched.lang.ir.arithmetic import Number, arithmetic, call, negate
from policysched.lang.ir.constant_folding import fold_constants
from policysched.lang.ir.expr import Arith, Call, Const, Else, Expr, If, Negate
from policysched.lang.ir.expr_analysis import type_of
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import Type


def check_constant(scope: Scope, node: s.Expression, type_: Type, *, unit: str | None = None) -> Const | None:
    """A constant in the representation of its type: a fraction of a whole unit is rounded down.

    `unit` is that of the texts for which the constant is the default.
    """
    expr = check_expression(scope, node, CONSTANT, type_)
    if expr is None or not check_always_present(scope, expr):
        return None
    conformed = conform(scope, fold_constants(expr), type_)
    if conformed is None:
        return None
    lint_number(scope, node, type_, unit=unit)
    if isinstance(conformed, Const):
        return _convert_constant(conformed, type_)
    value = evaluate_constant(conformed)
    if value is None:
        scope.report("PS221", "expected a constant", conformed.span, label="not a constant")
        return None
    return _convert_constant(Const(value, type_of(conformed), conformed.span), type_)


def _convert_constant(expr: Const, type_: Type) -> Const:
    value = expr.value
    if type_.is_numeric and isinstance(value, int | float):
        value = float(value) if type_.is_float64 else int(value // 1)
    return Const(value, type_.as_required(), expr.span)


def evaluate_constant(expr: Expr) -> Number | None:
    """The number, not rounded; None if it is not constant.

    `lang.ir.constant_folding` does not change expressions whose type holds whole units.
    """
    match expr:
        case Const(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case Arith(op=op, left=left, right=right, floating=floating):
            first, second = evaluate_constant(left), evaluate_constant(right)
            return (
                None if first is None or second is None else arithmetic(op, first, second, floating=floating)
            )
        case Negate(operand=operand):
            inner = evaluate_constant(operand)
            return None if inner is None else negate(inner)
        case Call(function=function, args=args, floating=floating):
            values = [evaluate_constant(arg) for arg in args]
            constants = [value for value in values if value is not None]
            return call(function, constants, floating=floating) if len(constants) == len(values) else None
        case Else(value=primary, fallback=fallback):
            result = evaluate_constant(primary)
            return evaluate_constant(fallback) if result is None else result
        case If(condition=Const(value=bool(chosen)), then=then, otherwise=other):
            return evaluate_constant(then if chosen else other)
        case _:
            return None
