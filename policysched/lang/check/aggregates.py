"""`mean of EXPR over nodes`, and the same `after placing`."""

from dataclasses import replace
from typing import Literal, cast

from policysched.lang.check.dimensions import describe_type
from policysched.lang.check.expression_checker import ExpressionChecker
from policysched.lang.ir import expr as e
from policysched.lang.ir.after_placement import expr_after_placement, place_pod_in_aggregates
from policysched.lang.ir.aggregates import nested_aggregates
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Type, TypeKind

AggregateFunction = Literal["sum", "mean", "max", "min", "stddev"]


def check_aggregate(reader: ExpressionChecker, node: s.AggregateExpr, expected: Type | None) -> e.Expr | None:
    if not reader.context.all_candidates:
        return reader.report_not_readable(node.span, "all candidates at once")
    if node.after_placement and reader.context.after_placement:
        _report_nested_after_placement(reader, node)
        return None
    function = cast(AggregateFunction, node.function.text)
    inside = replace(
        reader.context,
        description="what is said of each candidate",
        after_placement=reader.context.after_placement or node.after_placement,
        element_record=None,
    )
    body = reader.in_context(inside).check(node.value, expected)
    body = reader.require_numeric(body, f"`{function} of`")
    if body is None:
        return None
    kind = e.type_of(body)
    if kind.kind is TypeKind.TIMESTAMP:
        reader.scope.report(
            "PS204",
            f"`{function} of` needs amounts, and this is {describe_type(kind)}",
            body.span,
            label=describe_type(kind),
            help="take the time since then: `now - node.created`",
        )
        return None
    measures = function in ("mean", "stddev")
    type_ = t.FLOAT if measures and kind.kind is TypeKind.INT else kind.as_required()
    found = e.Aggregate(function, body, None, type_, measures or e.is_floating(body), node.span)
    return _aggregate_after_placement(reader, found) if node.after_placement else found


def _aggregate_after_placement(reader: ExpressionChecker, plain: e.Aggregate) -> e.Expr | None:
    metrics = reader.scope.metrics()
    body = place_pod_in_aggregates(plain.body, metrics)
    found = replace(plain, body=body, body_after_placement=expr_after_placement(body, metrics))
    return found if _check_single_moving_aggregate(reader, found) else None


def _check_single_moving_aggregate(reader: ExpressionChecker, placed: e.Aggregate) -> bool:
    """Whether at most one number in the value moves with the candidate, there and further in."""
    moving = [one for one in nested_aggregates(placed) if one.body_after_placement is not None]
    if len(moving) <= 1:
        return all(_check_single_moving_aggregate(reader, one) for one in moving)
    reader.scope.report(
        "PS246",
        f"{len(moving)} numbers move with the node that the pod is placed on, and one may",
        moving[1].span,
        label="the second of them",
        help="let the value read one of them, and give the other a score of its own",
    )
    return False


def _report_nested_after_placement(reader: ExpressionChecker, node: s.AggregateExpr) -> None:
    reader.scope.report(
        "PS246",
        "`after placing` stands in what is after placing already",
        node.span,
        label="the pod is on a node here",
        help=f"write `{node.function.text} of ... over nodes`: it is the number with the pod where it is thought",
    )
