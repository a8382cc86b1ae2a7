"""Conditional expressions: `a else b`, `if c then a else b`."""

from policysched.lang.check.dimensions import (
    common_type,
    describe_type,
    same_dimension,
)
from policysched.lang.check.expression_checker import ExpressionChecker
from policysched.lang.ir import expr as e
from policysched.lang.ir.expr_analysis import is_floating, type_of
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import Type, TypeKind


def check_else(checker: ExpressionChecker, node: s.ElseExpr, expected: Type | None) -> e.Expr | None:
    value = checker.check(node.value, expected)
    if value is None:
        checker.check_independent(node.fallback)
        return None
    fallback = checker.check(node.fallback, type_of(value).as_required())
    if fallback is None:
        return None
    left, right = type_of(value), type_of(fallback)
    if not same_dimension(left, right) or left.kind is TypeKind.LIST:
        checker.scope.report(
            "PS204" if left.is_numeric and right.is_numeric else "PS202",
            f"expected {describe_type(left)} after `else`, found {describe_type(right)}",
            fallback.span,
            label=f"expected {describe_type(left)}",
        )
        return None
    floating = is_floating(value) or is_floating(fallback)
    result = common_type([left, right])
    return e.Else(value, fallback, result if left.is_numeric else left.as_required(), floating, node.span)


def check_if(checker: ExpressionChecker, node: s.IfExpr, expected: Type | None) -> e.Expr | None:
    condition = checker.check_condition(node.condition, "if")
    then, other = checker.check_same_type((node.then, node.otherwise), expected)
    if condition is None or then is None or other is None:
        return None
    left, right = type_of(then), type_of(other)
    if left.kind is TypeKind.LIST or not same_dimension(left, right):
        if left.kind is TypeKind.LIST:
            message, label = "an `if` cannot yield a list", "not allowed"
        else:
            message = f"`then` yields {describe_type(left)}, but `else` yields {describe_type(right)}"
            label = f"expected {describe_type(left)}"
        checker.scope.report(
            "PS204" if left.is_numeric and right.is_numeric else "PS202",
            message,
            other.span,
            label=label,
        )
        return None
    floating = is_floating(then) or is_floating(other)
    result = common_type([left, right]) if left.is_numeric else left.as_required()
    return e.If(condition, then, other, result, floating, node.span)
