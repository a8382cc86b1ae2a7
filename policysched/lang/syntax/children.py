"""What an expression is made of, as it was written: the one place that knows the parts of each kind."""

from typing import assert_never

from policysched.lang.syntax import tree as s


def syntax_children(node: s.Expression) -> tuple[s.Expression, ...]:
    """Its parts, in the order of the text; none where it has none."""
    match node:
        case s.ListLit(items=items) | s.CallExpr(args=items):
            return items
        case s.UnaryExpr(operand=one) | s.HasExpr(target=one):
            return (one,)
        case s.BinaryExpr(left=left, right=right):
            return (left, right)
        case s.ElseExpr(value=value, fallback=fallback):
            return (value, fallback)
        case s.IfExpr(condition=condition, then=then, otherwise=otherwise):
            return (condition, then, otherwise)
        case s.AggregateExpr(value=value):
            return (value,)
        case s.CountExpr(where=where):
            return () if where is None else (where,)
        case s.ListFoldExpr(value=one, where=where):
            return tuple(part for part in (one, where) if part is not None)
        case s.NumberLit() | s.StringLit() | s.BoolLit() | s.NameExpr() | s.AttributeExpr():
            return ()
        case _:
            assert_never(node)
