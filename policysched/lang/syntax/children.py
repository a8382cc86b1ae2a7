"""The direct sub-expressions of a syntax node."""

from typing import assert_never

from policysched.lang.syntax import tree as s


def syntax_children(node: s.Expression) -> tuple[s.Expression, ...]:
    """The direct sub-expressions in source order."""
    match node:
        case s.ListLit(items=items) | s.CallExpr(args=items):
            return items
        case s.UnaryExpr(operand=operand) | s.HasExpr(target=operand):
            return (operand,)
        case s.BinaryExpr(left=left, right=right):
            return (left, right)
        case s.ElseExpr(value=value, fallback=fallback):
            return (value, fallback)
        case s.IfExpr(condition=condition, then=then, otherwise=otherwise):
            return (condition, then, otherwise)
        case s.AggregateExpr(value=value):
            return (value,)
        case s.ListFoldExpr(value=folded, where=where) | s.PodTotalExpr(value=folded, where=where):
            return tuple(part for part in (folded, where) if part is not None)
        case s.NumberLit() | s.StringLit() | s.BoolLit() | s.NameExpr() | s.AttributeExpr():
            return ()
        case _:
            assert_never(node)
