"""Expressions that are one of two values: `a else b`, `if c then a else b`."""

from policysched.lang.check.dimensions import (
    common,
    describe,
    same_dimension,
)
from policysched.lang.check.reading import Reader
from policysched.lang.ir import expr as e
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import Kind, Type


def otherwise(reader: Reader, node: s.ElseExpr, expected: Type | None) -> e.Expr | None:
    value = reader.read(node.value, expected)
    if value is None:
        reader.quietly(node.fallback)
        return None
    fallback = reader.read(node.fallback, e.type_of(value).present())
    if fallback is None:
        return None
    left, right = e.type_of(value), e.type_of(fallback)
    if not same_dimension(left, right) or left.kind is Kind.LIST:
        reader.scope.report(
            "PS204" if left.numeric and right.numeric else "PS202",
            f"`else` gives {describe(right)} for {describe(left)}",
            fallback.span,
            label=f"{describe(left)} is expected",
        )
        return None
    floating = e.is_floating(value) or e.is_floating(fallback)
    result = common([left, right])
    return e.Else(value, fallback, result if left.numeric else left.present(), floating, node.span)


def conditional(reader: Reader, node: s.IfExpr, expected: Type | None) -> e.Expr | None:
    condition = reader.condition(node.condition, "if")
    then, other = reader.alike((node.then, node.otherwise), expected)
    if condition is None or then is None or other is None:
        return None
    left, right = e.type_of(then), e.type_of(other)
    if left.kind is Kind.LIST or not same_dimension(left, right):
        reader.scope.report(
            "PS204" if left.numeric and right.numeric else "PS202",
            f"`then` gives {describe(left)}, and `else` gives {describe(right)}",
            other.span,
            label=f"{describe(left)} is expected"
            if left.kind is not Kind.LIST
            else "a list cannot be chosen",
        )
        return None
    floating = e.is_floating(then) or e.is_floating(other)
    result = common([left, right]) if left.numeric else left.present()
    return e.If(condition, then, other, result, floating, node.span)
