"""An expression made over: the same shape with some of its parts replaced."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, cast, get_args

from policysched.lang.ir.expr import Attr, Expr, InputRef, Owner, Stage
from policysched.text import Span

_EXPR_TYPES: tuple[type, ...] = get_args(Expr)


def transform(expr: Expr, change: Callable[[Expr], Expr], *, opaque: tuple[type, ...] = ()) -> Expr:
    """`change` sees every part, innermost first, with its own parts changed already. What is `opaque` it sees as it was. What stands
    in several places as one object is changed once, and stays one object."""
    known: dict[int, Expr] = {}

    def made(one: Expr) -> Expr:
        found = known.get(id(one))
        if found is None:
            found = known[id(one)] = change(
                one if isinstance(one, opaque) else _transform_children(one, made)
            )
        return found

    return made(expr)


def _transform_children(expr: Expr, made: Callable[[Expr], Expr]) -> Expr:
    changes: dict[str, Any] = {}
    for one in fields(expr):
        value = getattr(expr, one.name)
        if isinstance(value, _EXPR_TYPES):
            part = made(cast(Expr, value))
            if part is not value:
                changes[one.name] = part
        elif isinstance(value, tuple) and value and isinstance(value[0], _EXPR_TYPES):
            parts = tuple(made(part) for part in cast(tuple[Expr, ...], value))
            if any(part is not before for part, before in zip(parts, value, strict=True)):
                changes[one.name] = parts
    return replace(expr, **changes) if changes else expr


def with_span(expr: Expr, span: Span) -> Expr:
    """Every part stands where the whole is used: what is found wrong with it is said there."""
    return transform(expr, lambda one: replace(one, span=span))


def with_owner(owner: Owner, expr: Expr) -> Expr:
    """What the expression says of the pod, asked of another one: the counted pod, or a victim."""

    def change(one: Expr) -> Expr:
        match one:
            case Attr(owner="pod"):
                return replace(one, owner=owner)
            case InputRef(stage=Stage.POD):
                return replace(one, owner=owner, stage=Stage.CONSTANT)
            case _:
                return one

    return transform(expr, change)
