"""An expression made over: the same shape with some of its parts replaced."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, cast, get_args

from policysched.lang.expr import Attr, Expr, InputRef, Owner, Stage
from policysched.text import Span

_EXPRESSIONS: tuple[type, ...] = get_args(Expr)


def rebuilt(expr: Expr, change: Callable[[Expr], Expr], *, whole: tuple[type, ...] = ()) -> Expr:
    """`change` sees every part, innermost first, with its own parts changed already. What is `whole` it sees as it was."""
    changes: dict[str, Any] = {}
    for one in () if isinstance(expr, whole) else fields(expr):
        value = getattr(expr, one.name)
        if isinstance(value, _EXPRESSIONS):
            changes[one.name] = rebuilt(cast(Expr, value), change, whole=whole)
        elif isinstance(value, tuple) and value and isinstance(value[0], _EXPRESSIONS):
            changes[one.name] = tuple(
                rebuilt(part, change, whole=whole) for part in cast(tuple[Expr, ...], value)
            )
    return change(replace(expr, **changes) if changes else expr)


def placed_at(expr: Expr, span: Span) -> Expr:
    """Every part stands where the whole is used: what is found wrong with it is said there."""
    return rebuilt(expr, lambda one: replace(one, span=span))


def asked_of(owner: Owner, expr: Expr) -> Expr:
    """What the expression says of the pod, asked of another one: the counted pod, or a victim."""

    def change(one: Expr) -> Expr:
        match one:
            case Attr(owner="pod"):
                return replace(one, owner=owner)
            case InputRef(stage=Stage.POD):
                return replace(one, of=owner, stage=Stage.CONSTANT)
            case _:
                return one

    return rebuilt(expr, change)
