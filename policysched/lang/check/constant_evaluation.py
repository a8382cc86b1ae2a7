"""The value of a constant expression that `lang.ir.constant_folding` left alone, because its type holds whole units."""

from policysched.lang.ir.arithmetic import Number, arithmetic, call, negate
from policysched.lang.ir.expr import Arith, Call, Const, Else, Expr, If, Negate


def evaluate_constant(expr: Expr) -> Number | None:
    """The number, not rounded; None where it depends on something."""
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
            known = [value for value in values if value is not None]
            return call(function, known, floating=floating) if len(known) == len(values) else None
        case Else(value=one, fallback=fallback):
            first_choice = evaluate_constant(one)
            return evaluate_constant(fallback) if first_choice is None else first_choice
        case If(condition=Const(value=bool(chosen)), then=then, otherwise=other):
            return evaluate_constant(then if chosen else other)
        case _:
            return None
