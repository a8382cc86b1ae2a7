"""`mean of EXPR over nodes`, and the same `after placing`."""

from dataclasses import replace
from typing import Literal, cast

from policysched.lang import expr as e
from policysched.lang import syntax as s
from policysched.lang import types as t
from policysched.lang.check.dimensions import describe
from policysched.lang.check.reading import Reader
from policysched.lang.placing import after_placing
from policysched.lang.types import Kind, Type

_DEPTH_MAX = 3
Function = Literal["sum", "mean", "max", "min", "stddev"]


def aggregate(reader: Reader, node: s.AggregateExpr, expected: Type | None) -> e.Expr | None:
    if not reader.place.candidates:
        return reader.misplaced(node.span, "all candidates at once")
    if node.placing and reader.place.placing:
        return reader.misplaced(node.span, "the pod on another candidate")
    # One made of another is, say, the least of what each candidate would lead to.
    depth = reader.place.nested + 1
    inside = replace(
        reader.place,
        word="what is said of each candidate",
        candidates=depth < _DEPTH_MAX,
        nested=depth,
        placing=node.placing or reader.place.placing,
        element=None,
    )
    function = cast(Function, node.function.text)
    body = reader.at(inside).read(node.value, expected)
    body = reader.numeric(body, f"`{function} of`")
    if body is None:
        return None
    kind = e.type_of(body)
    if kind.kind is Kind.TIMESTAMP:
        reader.scope.report(
            "PS204",
            f"`{function} of` needs amounts, and this is {describe(kind)}",
            body.span,
            label=describe(kind),
            help="take the time since then: `now - node.created`",
        )
        return None
    placed = after_placing(body, reader.scope.metrics()) if node.placing else None
    measures = function in ("mean", "stddev")
    type_ = t.FLOAT if measures and kind.kind is Kind.INT else kind.present()
    return e.Aggregate(function, body, placed, type_, measures or e.is_floating(body), node.span)
