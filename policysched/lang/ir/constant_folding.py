"""Constant folding: evaluates constant sub-expressions, with the arithmetic of `lang.ir.arithmetic`.

A float64 result of an integer type (`1Gi * 0.8`) stays an operation, since a constant of that type would be rounded.
Nested `and` and `or` are flattened.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from policysched.lang.ir.arithmetic import Number, arithmetic, call, compare, negate
from policysched.lang.ir.expr import (
    Aggregate,
    And,
    Arith,
    Attr,
    Bucket,
    Call,
    Compare,
    Const,
    CountPodsOnNode,
    ElementField,
    Else,
    Expr,
    GangTraffic,
    Has,
    If,
    In,
    InputRef,
    ListFold,
    MetricRef,
    Negate,
    Not,
    NotRecovered,
    Now,
    Or,
    PodTotal,
    Rank,
    Split,
    StartsWith,
    StateRef,
    SumPodsOnNode,
    WeeklyWindow,
)
from policysched.lang.ir.expr_analysis import is_floating
from policysched.lang.ir.text_functions import bucket_of, parts_of
from policysched.lang.types.kinds import BOOL, INT, Type
from policysched.text import Span


def fold_constants(expr: Expr) -> Expr:
    """The expression with every constant sub-expression evaluated. Unchanged parts stay the same objects, and a shared
    object is folded once."""
    return _fold({}, expr)


def _fold(folded_by_id: dict[int, Expr], expr: Expr) -> Expr:
    folded = folded_by_id.get(id(expr))
    if folded is None:
        folded = folded_by_id[id(expr)] = _fold_children(expr, partial(_fold, folded_by_id))
    return folded


ExprFolder = Callable[[Expr], Expr]
ExprT = TypeVar("ExprT", bound=Expr)


def _fold_children(expr: Expr, fold: ExprFolder) -> Expr:
    match expr:
        case (
            Const()
            | Attr()
            | InputRef()
            | MetricRef()
            | ElementField()
            | Has()
            | NotRecovered()
            | Now()
            | WeeklyWindow()
        ):
            return expr
        case Not(operand=operand):
            return _fold_not(_replace_parts(expr, operand=fold(operand)))
        case And():
            return _fold_and_or(expr, fold, absorbing=False)
        case Or():
            return _fold_and_or(expr, fold, absorbing=True)
        case Compare():
            return _fold_compare(_replace_parts(expr, left=fold(expr.left), right=fold(expr.right)))
        case In():
            return _fold_in(_replace_parts(expr, item=fold(expr.item), options=fold(expr.options)))
        case Arith():
            return _fold_arith(_replace_parts(expr, left=fold(expr.left), right=fold(expr.right)))
        case Negate():
            return _fold_negate(_replace_parts(expr, operand=fold(expr.operand)))
        case Call():
            args = tuple(fold(arg) for arg in expr.args)
            return _fold_call(expr if _same_objects(args, expr.args) else replace(expr, args=args))
        case StartsWith() | Bucket() | Split():
            return _fold_text_function(_replace_parts(expr, text=fold(expr.text)))
        case Rank():
            return _fold_rank(_replace_parts(expr, item=fold(expr.item)))
        case Else():
            return _fold_else(_replace_parts(expr, value=fold(expr.value), fallback=fold(expr.fallback)))
        case Aggregate(body=body, body_after_placement=after):
            return _replace_parts(
                expr, body=fold(body), body_after_placement=None if after is None else fold(after)
            )
        case If():
            return _fold_if(
                _replace_parts(
                    expr,
                    condition=fold(expr.condition),
                    then=fold(expr.then),
                    otherwise=fold(expr.otherwise),
                )
            )
        case CountPodsOnNode(where=where):
            return expr if where is None else _replace_parts(expr, where=fold(where))
        case SumPodsOnNode():
            return _replace_parts(expr, value=fold(expr.value))
        case StateRef():
            return _replace_parts(expr, key=fold(expr.key))
        case GangTraffic(gang_key=gang_key, assume=assume):
            gang_key, assume = (None if part is None else fold(part) for part in (gang_key, assume))
            return _replace_parts(expr, pod_key=fold(expr.pod_key), gang_key=gang_key, assume=assume)
        case ListFold(value=value, where=where) | PodTotal(value=value, where=where):
            value, where = (None if part is None else fold(part) for part in (value, where))
            return _replace_parts(expr, value=value, where=where)


def _replace_parts(expr: ExprT, **parts: Expr | None) -> ExprT:
    """The expression with these parts; the same object where none of them changed."""
    if all(getattr(expr, name) is part for name, part in parts.items()):
        return expr
    return replace(expr, **parts)  # type: ignore[arg-type]


def _same_objects(left: Sequence[Expr], right: Sequence[Expr]) -> bool:
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


def is_constant(expr: Expr, value: bool) -> bool:
    """Whether it is the constant True (or False)."""
    return isinstance(expr, Const) and expr.type == BOOL and expr.value is value


def _fold_not(expr: Not) -> Expr:
    match expr.operand:
        case Const(value=bool(value)):
            return Const(not value, BOOL, expr.span)
        case Not(operand=inner):
            return inner
        case _:
            return expr


def _fold_and_or(expr: And | Or, fold: ExprFolder, *, absorbing: bool) -> Expr:
    """`and` (absorbing False) or `or` (absorbing True). The absorbing value decides even where another operand is missing."""
    kind = Or if absorbing else And
    left: list[Expr] = []
    for item in expr.items:
        folded = fold(item)
        if is_constant(folded, absorbing):
            return Const(absorbing, BOOL, expr.span)
        if is_constant(folded, not absorbing):
            continue
        left.extend(folded.items if isinstance(folded, kind) else (folded,))
    if not left:
        return Const(not absorbing, BOOL, expr.span)
    if len(left) == 1:
        return left[0]
    return expr if _same_objects(left, expr.items) else kind(tuple(left), expr.span)


def _fold_compare(expr: Compare) -> Expr:
    if isinstance(expr.left, Const) and isinstance(expr.right, Const):
        left, right = expr.left.value, expr.right.value
        assert not isinstance(left, tuple) and not isinstance(right, tuple), expr
        return Const(compare(expr.op, left, right), BOOL, expr.span)
    return expr


def _fold_in(expr: In) -> Expr:
    if isinstance(expr.item, Const) and isinstance(expr.options, Const):
        assert isinstance(expr.options.value, tuple), expr
        return Const(expr.item.value in expr.options.value, BOOL, expr.span)
    return expr


def _constant(value: Number, type_: Type, floating: bool, span: Span, unfolded: Expr) -> Expr:
    return Const(value, type_, span) if floating == type_.is_float64 else unfolded


def _number(expr: Expr) -> Number | None:
    if isinstance(expr, Const) and isinstance(expr.value, int | float) and not isinstance(expr.value, bool):
        return expr.value
    return None


def _fold_arith(expr: Arith) -> Expr:
    left, right = _number(expr.left), _number(expr.right)
    if left is None or right is None:
        return expr
    value = arithmetic(expr.op, left, right, floating=expr.floating)
    return expr if value is None else _constant(value, expr.type, expr.floating, expr.span, expr)


def _fold_negate(expr: Negate) -> Expr:
    if isinstance(expr.operand, Const):
        value = _number(expr.operand)
        assert value is not None, expr
        return Const(negate(value), expr.operand.type, expr.span)
    return expr


def _fold_call(expr: Call) -> Expr:
    numbers = [_number(arg) for arg in expr.args]
    constants = [number for number in numbers if number is not None]
    if len(constants) < len(numbers):
        return expr
    value = call(expr.function, constants, floating=expr.floating)
    return expr if value is None else _constant(value, expr.type, expr.floating, expr.span, expr)


def _fold_text_function(expr: StartsWith | Bucket | Split) -> Expr:
    text = expr.text
    if not isinstance(text, Const) or not isinstance(text.value, str):
        return expr
    if isinstance(expr, StartsWith):
        return Const(text.value.startswith(expr.prefix), BOOL, expr.span)
    if isinstance(expr, Split):
        return Const(parts_of(text.value, expr.separator), expr.type, expr.span)
    return Const(bucket_of(text.value, expr.count, expr.salt), INT, expr.span)


def _fold_rank(expr: Rank) -> Expr:
    if isinstance(expr.item, Const) and isinstance(expr.item.value, str):
        order = expr.order
        return Const(order.index(expr.item.value) if expr.item.value in order else len(order), INT, expr.span)
    return expr


def _fold_else(expr: Else) -> Expr:
    """A constant needs no fallback; a value that is always missing (`1 / 0`) is replaced by it."""
    value = expr.value
    if isinstance(value, Const):
        number = _number(value)
        if number is None or expr.floating == value.type.is_float64:
            return value
        return expr
    if _is_always_missing(value) and isinstance(expr.fallback, Const):
        number = _number(expr.fallback)
        if number is None or expr.floating == expr.fallback.type.is_float64:
            return expr.fallback
    return expr


def _fold_if(expr: If) -> Expr:
    """The branch that is always taken, unless folding would turn a float64 into an integer or back."""
    match expr.condition:
        case Const(value=bool(value)):
            taken = expr.then if value else expr.otherwise
            return taken if is_floating(taken) == expr.floating else expr
        case _:
            return expr


def _is_always_missing(expr: Expr) -> bool:
    """Whether all operands are constants but the operation has no value."""
    match expr:
        case Arith(op="/", left=left, right=Const(value=0)):
            return isinstance(left, Const)
        case Call(function="log" | "sqrt", args=(Const(),)):
            return True  # with a value it would have been folded
        case _:
            return False
