"""Aggregates over the candidates: `mean of EXPR over nodes`, optionally `after placing`."""

from dataclasses import replace
from typing import Literal, cast

from policysched.lang.check.dimensions import describe_type
from policysched.lang.check.expression_checker import ExpressionChecker
from policysched.lang.ir import expr as e
from policysched.lang.ir.after_placement import expr_after_placement, place_pod_in_aggregates
from policysched.lang.ir.aggregates import nested_aggregates
from policysched.lang.ir.expr_analysis import is_floating, type_of
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Type, TypeKind

AggregateFunction = Literal["sum", "mean", "max", "min", "stddev"]


def check_aggregate(
    checker: ExpressionChecker, node: s.AggregateExpr, expected: Type | None
) -> e.Expr | None:
    if not checker.context.all_candidates:
        return checker.report_not_readable(node.span, "an aggregate over the candidates")
    if node.after_placement and checker.context.after_placement:
        _report_nested_after_placement(checker, node)
        return None
    function = cast(AggregateFunction, node.function.text)
    inside = replace(
        checker.context,
        description="an aggregate",
        after_placement=checker.context.after_placement or node.after_placement,
        element_record=None,
    )
    body = checker.in_context(inside).check(node.value, expected)
    body = checker.require_numeric(body, f"`{function} of`")
    if body is None:
        return None
    kind = type_of(body)
    if kind.kind is TypeKind.TIMESTAMP:
        checker.scope.report(
            "PS204",
            f"`{function} of` expects an amount, found {describe_type(kind)}",
            body.span,
            label=describe_type(kind),
            help="aggregate a duration instead, for example `now - node.created`",
        )
        return None
    is_float = function in ("mean", "stddev")
    type_ = t.FLOAT if is_float and kind.kind is TypeKind.INT else kind.as_required()
    aggregate = e.Aggregate(function, body, None, type_, is_float or is_floating(body), node.span)
    return _aggregate_after_placement(checker, aggregate) if node.after_placement else aggregate


def _aggregate_after_placement(checker: ExpressionChecker, plain: e.Aggregate) -> e.Expr | None:
    metrics = checker.scope.metrics()
    body = place_pod_in_aggregates(plain.body, metrics)
    placed = replace(plain, body=body, body_after_placement=expr_after_placement(body, metrics))
    return placed if _check_single_moving_aggregate(checker, placed) else None


def _check_single_moving_aggregate(checker: ExpressionChecker, placed: e.Aggregate) -> bool:
    """Whether at most one aggregate per nesting level depends on the candidate."""
    moving = [inner for inner in nested_aggregates(placed) if inner.body_after_placement is not None]
    if len(moving) <= 1:
        return all(_check_single_moving_aggregate(checker, inner) for inner in moving)
    checker.scope.report(
        "PS246",
        f"{len(moving)} aggregates depend on the placement, the limit is 1",
        moving[1].span,
        label="second aggregate",
        help="use one of them here, and score the other separately",
    )
    return False


def _report_nested_after_placement(checker: ExpressionChecker, node: s.AggregateExpr) -> None:
    checker.scope.report(
        "PS246",
        "nested `after placing`",
        node.span,
        label="the pod is already placed here",
        help=f"write `{node.function.text} of ... over nodes`; it includes the placed pod",
    )
