"""What an expression of a node becomes once the pod is on it: the same with what a pod changes written out.

Requested and free resources move by the pod's requests, the pods on the node by one, and a metric that assumes something of
pods by what it assumes of this one. Nothing else of a node moves. An aggregate moves at every node alike, wherever the pod is put.
"""

from collections.abc import Mapping
from dataclasses import replace

from policysched.lang.ir import expr as e
from policysched.lang.ir.aggregates import outermost_aggregates
from policysched.lang.ir.declarations import Metric
from policysched.lang.ir.transform import transform
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Type
from policysched.text import Span


def place_pod_in_aggregates(expr: e.Expr, metrics: Mapping[str, Metric]) -> e.Expr:
    """The expression as it is on the other nodes: of what it says only the aggregates move."""

    def change(one: e.Expr) -> e.Expr:
        if not isinstance(one, e.Aggregate) or one.body_after_placement is not None:
            return one
        body = place_pod_in_aggregates(one.body, metrics)
        placed = expr_after_placement(body, metrics)
        moves = placed != body or any(
            inner.body_after_placement is not None for inner in outermost_aggregates(body)
        )
        return replace(one, body=body, body_after_placement=placed) if moves else one

    return transform(expr, change, opaque=(e.Aggregate,))


def expr_after_placement(expr: e.Expr, metrics: Mapping[str, Metric]) -> e.Expr:
    """The expression as it will be, by the pod's attributes and those that the node has now. Aggregates stay as they are."""

    def change(one: e.Expr) -> e.Expr:
        match one:
            case e.Attr(owner="node", path=("requested" | "free" as kind, resource), type=type_, span=span):
                request = e.Attr("pod", ("requests", resource), type_, span)
                return e.Arith("+" if kind == "requested" else "-", one, request, type_, False, span)
            case e.Attr(owner="node", path=("pods",), span=span):
                return _plus(one, e.Const(1, t.INT, span), t.INT, span)
            case e.MetricRef(name=name) if metrics[name].assumed_load is not None:
                return _plus_assumed_load(one, metrics[name])
            case e.Has(target=e.Arith(left=e.MetricRef() as metric)):
                return replace(one, target=metric)  # there or not, whatever is assumed
            case e.CountPodsOnNode(where=where, span=span):
                return _plus(one, _counted_for_placed_pod(where, span), t.INT, span)
            case e.SumPodsOnNode(value=value, type=type_, span=span):
                whole = e.Call("ceil", (_for_placed_pod(value),), t.INT, False, span)
                promised = e.Call("max", (whole, e.Const(0, t.INT, span)), t.INT, False, span)
                return _plus(one, _else_zero(promised, t.INT, span), type_, span)
            case _:
                return one

    return transform(expr, change, opaque=(e.Aggregate,))


def _plus(what: e.Expr, amount: e.Expr, type_: Type, span: Span) -> e.Expr:
    return e.Arith("+", what, amount, type_, type_.is_float64, span)


def _else_zero(amount: e.Expr, type_: Type, span: Span) -> e.Expr:
    """What has no value for this pod adds nothing."""
    floating = e.is_floating(amount)
    return e.Else(amount, e.Const(0.0 if floating else 0, type_, span), type_, floating, span)


def _counted_for_placed_pod(where: e.Expr | None, span: Span) -> e.Expr:
    one, none = e.Const(1, t.INT, span), e.Const(0, t.INT, span)
    if where is None:
        return one
    return _else_zero(e.If(_for_placed_pod(where), one, none, t.INT, False, span), t.INT, span)


def _plus_assumed_load(metric_of: e.MetricRef, metric: Metric) -> e.Expr:
    assume, type_, span = metric.assumed_load, metric_of.type, metric_of.span
    assert assume is not None, f"{metric.name} assumes nothing"
    amount = _else_zero(assume, e.type_of(assume), span)
    if not type_.is_float64 and e.is_floating(amount):
        amount = e.Call("trunc", (amount,), type_, False, span)
    return _plus(metric_of, amount, type_, span)


def _for_placed_pod(asked: e.Expr) -> e.Expr:
    """What is asked of a counted pod, asked of the pod that is being placed."""

    def change(one: e.Expr) -> e.Expr:
        match one:
            case e.Attr(owner="other"):
                return replace(one, owner="pod")
            case e.InputRef(owner="other"):
                return replace(one, owner="pod", stage=e.Stage.POD)
            case _:
                return one

    return transform(asked, change)
