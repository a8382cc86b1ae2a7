"""Expressions that are one of two values: `a else b`, `if c then a else b`."""

from policysched.lang.check.dimensions import (
    common_type,
    describe_type,
    same_dimension,
)
from policysched.lang.check.expression_checker import ExpressionChecker
from policysched.lang.ir import expr as e
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import Type, TypeKind


def check_else(reader: ExpressionChecker, node: s.ElseExpr, expected: Type | None) -> e.Expr | None:
    value = reader.check(node.value, expected)
    if value is None:
        reader.check_independent(node.fallback)
        return None
    fallback = reader.check(node.fallback, e.type_of(value).as_required())
    if fallback is None:
        return None
    left, right = e.type_of(value), e.type_of(fallback)
    if not same_dimension(left, right) or left.kind is TypeKind.LIST:
        reader.scope.report(
            "PS204" if left.is_numeric and right.is_numeric else "PS202",
            f"`else` gives {describe_type(right)} for {describe_type(left)}",
            fallback.span,
            label=f"{describe_type(left)} is expected",
        )
        return None
    floating = e.is_floating(value) or e.is_floating(fallback)
    result = common_type([left, right])
    return e.Else(value, fallback, result if left.is_numeric else left.as_required(), floating, node.span)


def check_if(reader: ExpressionChecker, node: s.IfExpr, expected: Type | None) -> e.Expr | None:
    condition = reader.check_condition(node.condition, "if")
    then, other = reader.check_same_type((node.then, node.otherwise), expected)
    if condition is None or then is None or other is None:
        return None
    left, right = e.type_of(then), e.type_of(other)
    if left.kind is TypeKind.LIST or not same_dimension(left, right):
        reader.scope.report(
            "PS204" if left.is_numeric and right.is_numeric else "PS202",
            f"`then` gives {describe_type(left)}, and `else` gives {describe_type(right)}",
            other.span,
            label=f"{describe_type(left)} is expected"
            if left.kind is not TypeKind.LIST
            else "a list cannot be chosen",
        )
        return None
    floating = e.is_floating(then) or e.is_floating(other)
    result = common_type([left, right]) if left.is_numeric else left.as_required()
    return e.If(condition, then, other, result, floating, node.span)
