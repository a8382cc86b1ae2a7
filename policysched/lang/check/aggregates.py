"""`mean of EXPR over nodes`, and the same `after placing`."""

from dataclasses import replace
from typing import Literal, cast

from policysched.lang.check.dimensions import describe
from policysched.lang.check.reading import Reader
from policysched.lang.ir import expr as e
from policysched.lang.ir.after_placement import after_placing, with_aggregates_placed
from policysched.lang.ir.aggregates import seen_by_all
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Kind, Type

Function = Literal["sum", "mean", "max", "min", "stddev"]


def aggregate(reader: Reader, node: s.AggregateExpr, expected: Type | None) -> e.Expr | None:
    if not reader.place.candidates:
        return reader.misplaced(node.span, "all candidates at once")
    if node.placing and reader.place.placed:
        _placed_twice(reader, node)
        return None
    function = cast(Function, node.function.text)
    inside = replace(
        reader.place,
        word="what is said of each candidate",
        placed=reader.place.placed or node.placing,
        element=None,
    )
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
    measures = function in ("mean", "stddev")
    type_ = t.FLOAT if measures and kind.kind is Kind.INT else kind.present()
    found = e.Aggregate(function, body, None, type_, measures or e.is_floating(body), node.span)
    return _placed(reader, found) if node.placing else found


def _placed(reader: Reader, plain: e.Aggregate) -> e.Expr | None:
    metrics = reader.scope.metrics()
    body = with_aggregates_placed(plain.body, metrics)
    found = replace(plain, body=body, placed=after_placing(body, metrics))
    return found if _one_moves(reader, found) else None


def _one_moves(reader: Reader, placed: e.Aggregate) -> bool:
    """Whether at most one number in the value moves with the candidate, there and further in."""
    moving = [one for one in seen_by_all(placed) if one.placed is not None]
    if len(moving) <= 1:
        return all(_one_moves(reader, one) for one in moving)
    reader.scope.report(
        "PS246",
        f"{len(moving)} numbers move with the node that the pod is placed on, and one may",
        moving[1].span,
        label="the second of them",
        help="let the value read one of them, and give the other a score of its own",
    )
    return False


def _placed_twice(reader: Reader, node: s.AggregateExpr) -> None:
    reader.scope.report(
        "PS246",
        "`after placing` stands in what is after placing already",
        node.span,
        label="the pod is on a node here",
        help=f"write `{node.function.text} of ... over nodes`: it is the number with the pod where it is thought",
    )
