"""Rewrites an expression of a node to its value after the pod is placed on that node.

Requested and free resources change by the pod's requests, pod counts by one, and a metric with assumed load by the load
assumed for this pod. Nothing else of the node changes. An aggregate changes for all nodes alike.
"""

from collections.abc import Mapping
from dataclasses import replace

from policysched.lang.ir import expr as e
from policysched.lang.ir.aggregates import outermost_aggregates
from policysched.lang.ir.declarations import Metric
from policysched.lang.ir.expr_analysis import is_floating, type_of
from policysched.lang.ir.transform import transform
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Type
from policysched.text import Span


def place_pod_in_aggregates(expr: e.Expr, metrics: Mapping[str, Metric]) -> e.Expr:
    """The expression on the other nodes: only its aggregates change."""

    def change(part: e.Expr) -> e.Expr:
        if not isinstance(part, e.Aggregate) or part.body_after_placement is not None:
            return part
        body = place_pod_in_aggregates(part.body, metrics)
        after = expr_after_placement(body, metrics)
        changes = after != body or any(
            inner.body_after_placement is not None for inner in outermost_aggregates(body)
        )
        return replace(part, body=body, body_after_placement=after) if changes else part

    return transform(expr, change, opaque=(e.Aggregate,))


def expr_after_placement(expr: e.Expr, metrics: Mapping[str, Metric]) -> e.Expr:
    """The expression after the placement, in terms of the pod's and the node's current attributes. Aggregates are left
    unchanged."""

    def change(part: e.Expr) -> e.Expr:
        match part:
            case e.Attr(owner="node", path=("requested" | "free" as kind, resource), type=type_, span=span):
                request = e.Attr("pod", ("requests", resource), type_, span)
                return e.Arith("+" if kind == "requested" else "-", part, request, type_, False, span)
            case e.Attr(owner="node", path=("pods",), span=span):
                return _plus(part, e.Const(1, t.INT, span), t.INT, span)
            case e.MetricRef(name=name) if metrics[name].assumed_load is not None:
                return _plus_assumed_load(part, metrics[name])
            case e.Has(target=e.Arith(left=e.MetricRef() as metric)):
                return replace(part, target=metric)  # assumed load does not make a metric present
            case e.CountPodsOnNode(where=where, span=span):
                return _plus(part, _counted_for_placed_pod(where, span), t.INT, span)
            case e.SumPodsOnNode(value=value, type=type_, span=span):
                rounded = e.Call("ceil", (_for_placed_pod(value),), t.INT, False, span)
                amount = e.Call("max", (rounded, e.Const(0, t.INT, span)), t.INT, False, span)
                return _plus(part, _else_zero(amount, t.INT, span), type_, span)
            case _:
                return part

    return transform(expr, change, opaque=(e.Aggregate,))


def _plus(value: e.Expr, amount: e.Expr, type_: Type, span: Span) -> e.Expr:
    return e.Arith("+", value, amount, type_, type_.is_float64, span)


def _else_zero(amount: e.Expr, type_: Type, span: Span) -> e.Expr:
    """0 where the amount is missing for this pod."""
    floating = is_floating(amount)
    return e.Else(amount, e.Const(0.0 if floating else 0, type_, span), type_, floating, span)


def _counted_for_placed_pod(where: e.Expr | None, span: Span) -> e.Expr:
    one, none = e.Const(1, t.INT, span), e.Const(0, t.INT, span)
    if where is None:
        return one
    return _else_zero(e.If(_for_placed_pod(where), one, none, t.INT, False, span), t.INT, span)


def _plus_assumed_load(metric_ref: e.MetricRef, metric: Metric) -> e.Expr:
    assume, type_, span = metric.assumed_load, metric_ref.type, metric_ref.span
    assert assume is not None, f"{metric.name} has no assumed load"
    amount = _else_zero(assume, type_of(assume), span)
    if not type_.is_float64 and is_floating(amount):
        amount = e.Call("trunc", (amount,), type_, False, span)
    return _plus(metric_ref, amount, type_, span)


def _for_placed_pod(expr: e.Expr) -> e.Expr:
    """An expression of a counted pod (`other`) for the pod that is placed."""

    def change(part: e.Expr) -> e.Expr:
        match part:
            case e.Attr(owner="other"):
                return replace(part, owner="pod")
            case e.InputRef(owner="other"):
                return replace(part, owner="pod", stage=e.Stage.POD)
            case _:
                return part

    return transform(expr, change)
