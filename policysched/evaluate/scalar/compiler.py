"""Expressions as Python functions of one pod (and, where one is looked at by itself, one node).

What depends on the pod only is worked out once a pod and never becomes an array: order, gangs, layers, most `when`s, the
right-hand side of most comparisons. The words of an explanation are filled in with these, too. A missing value is None.
"""

from collections.abc import Callable
from typing import assert_never

from policysched.cluster.samples import StateRow
from policysched.evaluate.scalar import leaves as read
from policysched.evaluate.scalar import operations as do
from policysched.evaluate.scalar.eval_context import EvalContext, ExprDeclarations, ScalarFunction
from policysched.lang.ir import expr as e

EMPTY_STATE_ROW = StateRow({})


def compile_scalar(expr: e.Expr, program: ExprDeclarations) -> ScalarFunction:
    """The function that gives the expression's value. A flat table, a line or two for each kind of node: what is read is in
    `scalar_leaves`, what is done with it in `scalar_operations`."""

    def function(one: e.Expr) -> ScalarFunction:
        return compile_scalar(one, program)

    match expr:
        case e.Const(value=value):
            return lambda seen: value
        case e.Attr(owner=owner, path=path):
            return read.attribute(owner, path)
        case e.InputRef(name=name, owner=of):
            return read.input_value(program.inputs[name], of)
        case e.MetricRef(name=name):
            return read.metric_value(program.metrics[name])
        case e.Has(target=target):
            found = function(target)
            return lambda seen: found(seen) is not None
        case e.Not(operand=operand):
            return do.logical_not(function(operand))
        case e.And(items=items):
            return do.logical_connective([function(item) for item in items], decisive=False)
        case e.Or(items=items):
            return do.logical_connective([function(item) for item in items], decisive=True)
        case e.Compare():
            return do.comparison(expr, function(expr.left), function(expr.right))
        case e.In():
            return do.membership(expr, function(expr.item), function(expr.options))
        case e.Arith():
            return do.binary_arithmetic(expr, function(expr.left), function(expr.right))
        case e.Negate(operand=operand):
            return do.arithmetic_negation(function(operand))
        case e.Call():
            return do.function_call(expr, [function(arg) for arg in expr.args])
        case e.Rank(item=item, order=order):
            return do.rank(function(item), order)
        case e.Else():
            return do.value_or_fallback(expr, function(expr.value), function(expr.fallback))
        case e.If():
            return do.conditional(
                expr, function(expr.condition), function(expr.then), function(expr.otherwise)
            )
        case e.CountPodsOnNode(where=where):
            return do.pod_count(None if where is None else function(where))
        case e.CountPodsInCluster():
            return do.pod_count_anywhere(expr, program)
        case e.SumPodsOnNode():
            return do.pod_sum(expr, function(expr.value))
        case e.ElementField(index=index):
            return read.element_field(index)
        case e.ListFold():
            return do.fold(
                expr,
                function(expr.items),
                None if expr.where is None else function(expr.where),
                None if expr.value is None else function(expr.value),
            )
        case e.StateRef():
            return read.state_value(expr, compile_state_row(expr, program))
        case e.NotRecovered(condition=watch):
            return read.awaiting_recovery(watch, read.metric_value(program.metrics[watch.metric]))
        case e.GangTraffic():
            raise AssertionError(f"`{expr.span.text}` is asked of one node, and the members may be on any")
        case e.Aggregate():
            raise AssertionError(f"`{expr.span.text}` is asked of a pod alone")
        case e.Now():
            return lambda seen: seen.now_ns
        case e.WeeklyWindow(minute_ranges=spans, time_zone=zone):
            return do.window(spans, zone)
        case _:
            assert_never(expr)


def compile_state_row(
    expr: e.StateRef, program: ExprDeclarations
) -> Callable[[EvalContext], StateRow | None]:
    """What the state has for the pod's key, on whichever node; None where the key is missing."""
    key_of, name = compile_scalar(expr.key, program), expr.name

    def row(seen: EvalContext) -> StateRow | None:
        key = key_of(seen)
        if key is None:
            return None
        table = seen.samples.get(name)
        return EMPTY_STATE_ROW if table is None else table.state_rows.get(str(key), EMPTY_STATE_ROW)

    return row
