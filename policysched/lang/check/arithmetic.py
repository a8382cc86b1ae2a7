"""Arithmetic: sums, differences, products and quotients, and the dimension of each."""

from typing import Literal, cast

from policysched.lang.check.dimensions import DIMENSIONLESS, product_type, same_dimension, sum_type
from policysched.lang.check.expression_checker import ExpressionChecker
from policysched.lang.ir import expr as e
from policysched.lang.ir.expr_analysis import is_floating, type_of
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Type, TypeKind


def check_minus(checker: ExpressionChecker, node: s.UnaryExpr, expected: Type | None) -> e.Expr | None:
    operand = checker.require_numeric(checker.check(node.operand, expected), "`-`")
    if operand is None:
        return None
    if type_of(operand).kind is TypeKind.TIMESTAMP:
        checker.scope.report("PS204", "a point in time cannot be negated", node.span)
        return None
    return e.Negate(operand, node.span)


def check_sum(checker: ExpressionChecker, node: s.BinaryExpr, expected: Type | None) -> e.Expr | None:
    if checker.needs_expected_type(node) and expected is not None:
        left, right = checker.check(node.left, expected), checker.check(node.right, expected)
    else:
        pair = _operands_with_timestamp(checker, node)
        left, right = (None, None) if pair is None else pair
    left, right = (
        checker.require_numeric(left, f"`{node.op}`"),
        checker.require_numeric(right, f"`{node.op}`"),
    )
    if left is None or right is None:
        return None
    result = sum_type(node.op, type_of(left), type_of(right))
    if result is None:
        verb = "added to" if node.op == "+" else "subtracted from"
        first, second = type_of(left), type_of(right)
        return checker.report_incompatible(
            node, verb, *((first, second) if node.op == "+" else (second, first))
        )
    return _arithmetic_node(node, left, right, result)


def _operands_with_timestamp(checker: ExpressionChecker, node: s.BinaryExpr) -> tuple[e.Expr, e.Expr] | None:
    """As `check_operands`, but next to a point in time a literal is a duration."""
    if checker.needs_expected_type(node.right) and not checker.needs_expected_type(node.left):
        left = checker.check(node.left, None)
        if left is None:
            return None
        kind = type_of(left)
        right = checker.check(node.right, t.DURATION if kind.kind is TypeKind.TIMESTAMP else kind)
        return None if right is None else (left, right)
    return checker.check_operands(node)


def _arithmetic_node(node: s.BinaryExpr, left: e.Expr, right: e.Expr, result: Type) -> e.Expr:
    ratio = node.op == "/" and same_dimension(type_of(left), type_of(right))
    floating = ratio or is_floating(left) or is_floating(right)
    return e.Arith(
        cast(Literal["+", "-", "*", "/"], node.op), left, right, result.as_required(), floating, node.span
    )


def check_product(checker: ExpressionChecker, node: s.BinaryExpr, expected: Type | None) -> e.Expr | None:
    """A literal operand is a plain number, unless it has a suffix or nothing else has a unit."""
    dimension = expected if expected is not None and expected.kind not in DIMENSIONLESS else None
    if (
        node.op == "/"
        and checker.needs_expected_type(node.right)
        and not checker.needs_expected_type(node.left)
    ):
        left = checker.check(node.left, dimension)
        known = None if left is None else type_of(left)
        right = checker.check(node.right, known if _has_unit_suffix(node.right) else None)
    else:
        left = checker.check(node.left, dimension if _has_unit_suffix(node.left) else None)
        divides = node.op == "/" and left is not None and _has_unit_suffix(node.right)
        known = type_of(left) if divides and left is not None else dimension
        right = checker.check(node.right, known if _has_unit_suffix(node.right) else None)
    left, right = (
        checker.require_numeric(left, f"`{node.op}`"),
        checker.require_numeric(right, f"`{node.op}`"),
    )
    if left is None or right is None:
        return None
    result = product_type(node.op, type_of(left), type_of(right))
    if result is None:
        verb = "multiplied by" if node.op == "*" else "divided by"
        return checker.report_incompatible(node, verb, type_of(left), type_of(right))
    return _arithmetic_node(node, left, right, result)


def _has_unit_suffix(node: s.Expression) -> bool:
    """Whether a literal has a unit suffix, so that its value may depend on the expected type."""
    match node:
        case s.NumberLit(suffix=suffix):
            return suffix != ""
        case s.UnaryExpr(op="-", operand=operand):
            return _has_unit_suffix(operand)
        case s.BinaryExpr(op="+" | "-" | "*" | "/", left=left, right=right):
            return _has_unit_suffix(left) or _has_unit_suffix(right)
        case s.CallExpr(args=args):
            return any(map(_has_unit_suffix, args))
        case s.IfExpr(then=then, otherwise=otherwise):
            return _has_unit_suffix(then) or _has_unit_suffix(otherwise)
        case s.ElseExpr(value=value, fallback=fallback):
            return _has_unit_suffix(value) or _has_unit_suffix(fallback)
        case _:
            return False
