"""Rewriting of expressions: the same shape with some parts replaced."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from policysched.lang.ir.expr import Attr, Expr, InputRef, Owner, Stage
from policysched.lang.ir.expr_analysis import OPERANDS
from policysched.text import Span


def transform(expr: Expr, change: Callable[[Expr], Expr], *, opaque: tuple[type, ...] = ()) -> Expr:
    """Applies `change` to every part in post-order, after its own parts were changed. The parts of an expression of an
    `opaque` type are left unchanged. A shared object is changed once and stays shared."""
    changed_by_id: dict[int, Expr] = {}

    def rewrite(part: Expr) -> Expr:
        changed = changed_by_id.get(id(part))
        if changed is None:
            changed = changed_by_id[id(part)] = change(
                part if isinstance(part, opaque) else _transform_children(part, rewrite)
            )
        return changed

    return rewrite(expr)


def _transform_children(expr: Expr, rewrite: Callable[[Expr], Expr]) -> Expr:
    changes: dict[str, Any] = {}
    for name in OPERANDS[type(expr)]:
        operand = getattr(expr, name)
        if type(operand) is tuple:
            operands = tuple(map(rewrite, operand))
            if any(part is not before for part, before in zip(operands, operand, strict=True)):
                changes[name] = operands
        elif operand is not None:
            part = rewrite(operand)
            if part is not operand:
                changes[name] = part
    return replace(expr, **changes) if changes else expr


def with_span(expr: Expr, span: Span) -> Expr:
    """The expression with every part at `span`, so that diagnostics point to the place of use."""
    return transform(expr, lambda part: replace(part, span=span))


def with_owner(owner: Owner, expr: Expr) -> Expr:
    """An expression of the pod, read from another pod instead: the counted pod or a victim."""

    def change(part: Expr) -> Expr:
        match part:
            case Attr(owner="pod"):
                return replace(part, owner=owner)
            case InputRef(stage=Stage.POD):
                return replace(part, owner=owner, stage=Stage.CONSTANT)
            case _:
                return part

    return transform(expr, change)
