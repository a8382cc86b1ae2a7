"""Sums, differences, products and quotients, with the dimension of each."""

from typing import Literal, cast

from policysched.lang.check.dimensions import DIMENSIONLESS, product_type, same_dimension, sum_type
from policysched.lang.check.reading import Reader
from policysched.lang.ir import expr as e
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Kind, Type


def minus(reader: Reader, node: s.Unary, expected: Type | None) -> e.Expr | None:
    operand = reader.numeric(reader.read(node.operand, expected), "`-`")
    if operand is None:
        return None
    if e.type_of(operand).kind is Kind.TIMESTAMP:
        reader.scope.report("PS204", "a point in time has no negative", node.span)
        return None
    return e.Negate(operand, node.span)


def sum_or_difference(reader: Reader, node: s.Binary, expected: Type | None) -> e.Expr | None:
    if reader.undecided(node) and expected is not None:
        left, right = reader.read(node.left, expected), reader.read(node.right, expected)
    else:
        pair = _timed_pair(reader, node)
        left, right = (None, None) if pair is None else pair
    left, right = reader.numeric(left, f"`{node.op}`"), reader.numeric(right, f"`{node.op}`")
    if left is None or right is None:
        return None
    result = sum_type(node.op, e.type_of(left), e.type_of(right))
    if result is None:
        verb = "added to" if node.op == "+" else "subtracted from"
        first, second = e.type_of(left), e.type_of(right)
        return reader.unlike(node, verb, *((first, second) if node.op == "+" else (second, first)))
    return _arith(node, left, right, result)


def _timed_pair(reader: Reader, node: s.Binary) -> tuple[e.Expr, e.Expr] | None:
    """As `pair`; beside a point in time a literal is a duration."""
    if reader.undecided(node.right) and not reader.undecided(node.left):
        left = reader.read(node.left, None)
        if left is None:
            return None
        kind = e.type_of(left)
        right = reader.read(node.right, t.DURATION if kind.kind is Kind.TIMESTAMP else kind)
        return None if right is None else (left, right)
    return reader.pair(node)


def _arith(node: s.Binary, left: e.Expr, right: e.Expr, result: Type) -> e.Expr:
    ratio = node.op == "/" and same_dimension(e.type_of(left), e.type_of(right))
    floating = ratio or e.is_floating(left) or e.is_floating(right)
    return e.Arith(
        cast(Literal["+", "-", "*", "/"], node.op), left, right, result.present(), floating, node.span
    )


def product(reader: Reader, node: s.Binary, expected: Type | None) -> e.Expr | None:
    """A literal beside an operator is a plain number, unless its suffix says more or nothing else has a unit."""
    dimension = expected if expected is not None and expected.kind not in DIMENSIONLESS else None
    if node.op == "/" and reader.undecided(node.right) and not reader.undecided(node.left):
        left = reader.read(node.left, dimension)
        known = None if left is None else e.type_of(left)
        right = reader.read(node.right, known if _suffixed(node.right) else None)
    else:
        left = reader.read(node.left, dimension if _suffixed(node.left) else None)
        divides = node.op == "/" and left is not None and _suffixed(node.right)
        known = e.type_of(left) if divides and left is not None else dimension
        right = reader.read(node.right, known if _suffixed(node.right) else None)
    left, right = reader.numeric(left, f"`{node.op}`"), reader.numeric(right, f"`{node.op}`")
    if left is None or right is None:
        return None
    result = product_type(node.op, e.type_of(left), e.type_of(right))
    if result is None:
        verb = "multiplied by" if node.op == "*" else "divided by"
        return reader.unlike(node, verb, e.type_of(left), e.type_of(right))
    return _arith(node, left, right, result)


def _suffixed(node: s.Expression) -> bool:
    """Whether a literal has a unit, so that a type may be needed to read it."""
    match node:
        case s.NumberLit(suffix=suffix):
            return suffix != ""
        case s.Unary(op="-", operand=operand):
            return _suffixed(operand)
        case s.Binary(op="+" | "-" | "*" | "/", left=left, right=right):
            return _suffixed(left) or _suffixed(right)
        case s.CallExpr(args=args):
            return any(map(_suffixed, args))
        case s.IfExpr(then=then, otherwise=otherwise):
            return _suffixed(then) or _suffixed(otherwise)
        case s.ElseExpr(value=value, fallback=fallback):
            return _suffixed(value) or _suffixed(fallback)
        case _:
            return False
