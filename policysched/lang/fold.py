"""Constant folding: what does not depend on anything is evaluated once, here, with the same meaning as everywhere.

A floating value of a type that is held in whole units (`1Gi * 0.8`) stays an operation, since a constant of that type
would be rounded. Nested `and` and `or` become one.
"""

from dataclasses import replace

from policysched.lang.arithmetic import Number, arithmetic, call, compare, negate
from policysched.lang.expr import (
    Aggregate,
    And,
    Arith,
    Attr,
    Call,
    Compare,
    Const,
    CountAnywhere,
    CountPods,
    Element,
    Else,
    Expr,
    Fold,
    Has,
    Held,
    If,
    In,
    InputRef,
    MetricRef,
    Negate,
    Not,
    Now,
    Or,
    Rank,
    StateRef,
    SumPods,
    TrafficTo,
    Window,
    is_floating,
)
from policysched.lang.types import BOOL, INT, Type
from policysched.text import Span


def fold(expr: Expr) -> Expr:
    """The same expression with every constant part evaluated."""
    match expr:
        case Const() | Attr() | InputRef() | MetricRef() | Element() | Has() | Held() | Now() | Window():
            return expr
        case Not(operand=operand):
            return _not(replace(expr, operand=fold(operand)))
        case And(items=items, span=span):
            return _junction(items, span, absorbing=False)
        case Or(items=items, span=span):
            return _junction(items, span, absorbing=True)
        case Compare():
            return _compare(replace(expr, left=fold(expr.left), right=fold(expr.right)))
        case In():
            return _in(replace(expr, item=fold(expr.item), options=fold(expr.options)))
        case Arith():
            return _arith(replace(expr, left=fold(expr.left), right=fold(expr.right)))
        case Negate():
            return _negate(replace(expr, operand=fold(expr.operand)))
        case Call():
            return _call(replace(expr, args=tuple(fold(arg) for arg in expr.args)))
        case Rank():
            return _rank(replace(expr, item=fold(expr.item)))
        case Else():
            return _else(replace(expr, value=fold(expr.value), fallback=fold(expr.fallback)))
        case Aggregate(body=body, placed=placed):
            return replace(expr, body=fold(body), placed=None if placed is None else fold(placed))
        case If():
            return _if(
                replace(
                    expr,
                    condition=fold(expr.condition),
                    then=fold(expr.then),
                    otherwise=fold(expr.otherwise),
                )
            )
        case CountPods(where=where):
            return expr if where is None else replace(expr, where=fold(where))
        case CountAnywhere():
            return replace(expr, where=fold(expr.where))
        case SumPods():
            return replace(expr, value=fold(expr.value))
        case StateRef():
            return replace(expr, key=fold(expr.key))
        case TrafficTo(by=by, assume=assume):
            by, assume = (None if part is None else fold(part) for part in (by, assume))
            return replace(expr, key=fold(expr.key), by=by, assume=assume)
        case Fold(value=value, where=where):
            value, where = (None if part is None else fold(part) for part in (value, where))
            return replace(expr, value=value, where=where)


def is_constant(expr: Expr, value: bool) -> bool:
    """Whether it is the constant True (or False)."""
    return isinstance(expr, Const) and expr.type == BOOL and expr.value is value


def _not(expr: Not) -> Expr:
    match expr.operand:
        case Const(value=bool(value)):
            return Const(not value, BOOL, expr.span)
        case Not(operand=inner):
            return inner
        case _:
            return expr


def _junction(items: tuple[Expr, ...], span: Span, *, absorbing: bool) -> Expr:
    """`and` (absorbing False) or `or` (absorbing True). The absorbing value decides even beside a missing one."""
    kind = Or if absorbing else And
    left: list[Expr] = []
    for item in items:
        folded = fold(item)
        if is_constant(folded, absorbing):
            return Const(absorbing, BOOL, span)
        if is_constant(folded, not absorbing):
            continue
        left.extend(folded.items if isinstance(folded, kind) else (folded,))
    if not left:
        return Const(not absorbing, BOOL, span)
    return left[0] if len(left) == 1 else kind(tuple(left), span)


def _compare(expr: Compare) -> Expr:
    if isinstance(expr.left, Const) and isinstance(expr.right, Const):
        left, right = expr.left.value, expr.right.value
        assert not isinstance(left, tuple) and not isinstance(right, tuple), expr
        return Const(compare(expr.op, left, right), BOOL, expr.span)
    return expr


def _in(expr: In) -> Expr:
    if isinstance(expr.item, Const) and isinstance(expr.options, Const):
        assert isinstance(expr.options.value, tuple), expr
        return Const(expr.item.value in expr.options.value, BOOL, expr.span)
    return expr


def _constant(value: Number, type_: Type, floating: bool, span: Span, unfolded: Expr) -> Expr:
    return Const(value, type_, span) if floating == type_.held_as_float else unfolded


def _number(expr: Expr) -> Number | None:
    if isinstance(expr, Const) and isinstance(expr.value, int | float) and not isinstance(expr.value, bool):
        return expr.value
    return None


def _arith(expr: Arith) -> Expr:
    left, right = _number(expr.left), _number(expr.right)
    if left is None or right is None:
        return expr
    value = arithmetic(expr.op, left, right, floating=expr.floating)
    return expr if value is None else _constant(value, expr.type, expr.floating, expr.span, expr)


def _negate(expr: Negate) -> Expr:
    if isinstance(expr.operand, Const):
        value = _number(expr.operand)
        assert value is not None, expr
        return Const(negate(value), expr.operand.type, expr.span)
    return expr


def _call(expr: Call) -> Expr:
    numbers = [_number(arg) for arg in expr.args]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return expr
    value = call(expr.function, known, floating=expr.floating)
    return expr if value is None else _constant(value, expr.type, expr.floating, expr.span, expr)


def _rank(expr: Rank) -> Expr:
    if isinstance(expr.item, Const) and isinstance(expr.item.value, str):
        order = expr.order
        return Const(order.index(expr.item.value) if expr.item.value in order else len(order), INT, expr.span)
    return expr


def _else(expr: Else) -> Expr:
    """A value that is there needs no fallback; one that never is (`1 / 0`) is replaced by it."""
    value = expr.value
    if isinstance(value, Const):
        number = _number(value)
        if number is None or expr.floating == value.type.held_as_float:
            return value
        return expr
    if _never(value) and isinstance(expr.fallback, Const):
        number = _number(expr.fallback)
        if number is None or expr.floating == expr.fallback.type.held_as_float:
            return expr.fallback
    return expr


def _if(expr: If) -> Expr:
    """The branch that is always taken, where it is held as the whole would be."""
    match expr.condition:
        case Const(value=bool(value)):
            taken = expr.then if value else expr.otherwise
            return taken if is_floating(taken) == expr.floating else expr
        case _:
            return expr


def _never(expr: Expr) -> bool:
    """Whether all operands are constants and there still is no value."""
    match expr:
        case Arith(op="/", left=left, right=Const(value=0)):
            return isinstance(left, Const)
        case Call(function="log" | "sqrt", args=(Const(),)):
            return True  # it would have been folded, had it a value
        case _:
            return False
