"""What an expression of a node becomes once the pod is on it: the same with what a pod changes written out.

Requested and free resources move by the pod's requests, the pods on the node by one, and a metric that assumes something of
pods by what it assumes of this one. Nothing else of a node moves. An aggregate moves at every node alike, wherever the pod is put.
"""

from collections.abc import Mapping
from dataclasses import replace

from policysched.lang.ir import expr as e
from policysched.lang.ir.aggregates import inner_aggregates
from policysched.lang.ir.program import Metric
from policysched.lang.ir.transform import rebuilt
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Type
from policysched.text import Span


def with_aggregates_placed(expr: e.Expr, metrics: Mapping[str, Metric]) -> e.Expr:
    """The expression as it is on the other nodes: of what it says only the aggregates move."""

    def change(one: e.Expr) -> e.Expr:
        if not isinstance(one, e.Aggregate) or one.placed is not None:
            return one
        body = with_aggregates_placed(one.body, metrics)
        placed = after_placing(body, metrics)
        moves = placed != body or any(inner.placed is not None for inner in inner_aggregates(body))
        return replace(one, body=body, placed=placed) if moves else one

    return rebuilt(expr, change, whole=(e.Aggregate,))


def after_placing(expr: e.Expr, metrics: Mapping[str, Metric]) -> e.Expr:
    """The expression as it will be, by the pod's attributes and those that the node has now. Aggregates stay as they are."""

    def change(one: e.Expr) -> e.Expr:
        match one:
            case e.Attr(owner="node", path=("requested" | "free" as kind, resource), type=type_, span=span):
                request = e.Attr("pod", ("requests", resource), type_, span)
                return e.Arith("+" if kind == "requested" else "-", one, request, type_, False, span)
            case e.Attr(owner="node", path=("pods",), span=span):
                return _more(one, e.Const(1, t.INT, span), t.INT, span)
            case e.MetricRef(name=name) if metrics[name].assume is not None:
                return _with_assumed(one, metrics[name])
            case e.Has(target=e.Arith(left=e.MetricRef() as metric)):
                return replace(one, target=metric)  # there or not, whatever is assumed
            case e.CountPods(where=where, span=span):
                return _more(one, _counts(where, span), t.INT, span)
            case e.SumPods(value=value, type=type_, span=span):
                whole = e.Call("ceil", (_of_this_pod(value),), t.INT, False, span)
                promised = e.Call("max", (whole, e.Const(0, t.INT, span)), t.INT, False, span)
                return _more(one, _or_nothing(promised, t.INT, span), type_, span)
            case _:
                return one

    return rebuilt(expr, change, whole=(e.Aggregate,))


def _more(what: e.Expr, amount: e.Expr, type_: Type, span: Span) -> e.Expr:
    return e.Arith("+", what, amount, type_, type_.held_as_float, span)


def _or_nothing(amount: e.Expr, type_: Type, span: Span) -> e.Expr:
    """What has no value for this pod adds nothing."""
    floating = e.is_floating(amount)
    return e.Else(amount, e.Const(0.0 if floating else 0, type_, span), type_, floating, span)


def _counts(where: e.Expr | None, span: Span) -> e.Expr:
    one, none = e.Const(1, t.INT, span), e.Const(0, t.INT, span)
    if where is None:
        return one
    return _or_nothing(e.If(_of_this_pod(where), one, none, t.INT, False, span), t.INT, span)


def _with_assumed(metric_of: e.MetricRef, metric: Metric) -> e.Expr:
    assume, type_, span = metric.assume, metric_of.type, metric_of.span
    assert assume is not None, f"{metric.name} assumes nothing"
    amount = _or_nothing(assume, e.type_of(assume), span)
    if not type_.held_as_float and e.is_floating(amount):
        amount = e.Call("trunc", (amount,), type_, False, span)
    return _more(metric_of, amount, type_, span)


def _of_this_pod(asked: e.Expr) -> e.Expr:
    """What is asked of a counted pod, asked of the pod that is being placed."""

    def change(one: e.Expr) -> e.Expr:
        match one:
            case e.Attr(owner="other"):
                return replace(one, owner="pod")
            case e.InputRef(of="other"):
                return replace(one, of="pod", stage=e.Stage.POD)
            case _:
                return one

    return rebuilt(asked, change)
