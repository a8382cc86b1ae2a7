"""Expressions as Python functions of one pod (and, where one is looked at by itself, one node).

What depends on the pod only is worked out once a pod and never becomes an array: order, gangs, layers, most `when`s, the
right-hand side of most comparisons. The words of an explanation are filled in with these, too. A missing value is None.
"""

from collections.abc import Callable
from typing import assert_never

from policysched.cluster.samples import StateRow
from policysched.evaluate.scalar import leaves as read
from policysched.evaluate.scalar import operations as do
from policysched.evaluate.scalar.eval_context import Declarations, Function, Seen
from policysched.lang.ir import expr as e

NOTHING_SEEN = StateRow({})


def compiled(expr: e.Expr, program: Declarations) -> Function:
    """The function that gives the expression's value. A flat table, a line or two for each kind of node: what is read is in
    `scalar_leaves`, what is done with it in `scalar_operations`."""

    def function(one: e.Expr) -> Function:
        return compiled(one, program)

    match expr:
        case e.Const(value=value):
            return lambda seen: value
        case e.Attr(owner=owner, path=path):
            return read.attribute(owner, path)
        case e.InputRef(name=name, of=of):
            return read.input_value(program.inputs[name], of)
        case e.MetricRef(name=name):
            return read.metric(program.metrics[name])
        case e.Has(target=target):
            found = function(target)
            return lambda seen: found(seen) is not None
        case e.Not(operand=operand):
            return do.negated(function(operand))
        case e.And(items=items):
            return do.junction([function(item) for item in items], decisive=False)
        case e.Or(items=items):
            return do.junction([function(item) for item in items], decisive=True)
        case e.Compare():
            return do.comparison(expr, function(expr.left), function(expr.right))
        case e.In():
            return do.containment(expr, function(expr.item), function(expr.options))
        case e.Arith():
            return do.calculation(expr, function(expr.left), function(expr.right))
        case e.Negate(operand=operand):
            return do.opposite(function(operand))
        case e.Call():
            return do.function_call(expr, [function(arg) for arg in expr.args])
        case e.Rank(item=item, order=order):
            return do.rank(function(item), order)
        case e.Else():
            return do.with_fallback(expr, function(expr.value), function(expr.fallback))
        case e.If():
            return do.choice(expr, function(expr.condition), function(expr.then), function(expr.otherwise))
        case e.CountPods(where=where):
            return do.pod_count(None if where is None else function(where))
        case e.CountAnywhere():
            return do.pod_count_anywhere(expr, program)
        case e.SumPods():
            return do.pod_sum(expr, function(expr.value))
        case e.Element(index=index):
            return read.field_of_element(index)
        case e.Fold():
            return do.fold(
                expr,
                function(expr.items),
                None if expr.where is None else function(expr.where),
                None if expr.value is None else function(expr.value),
            )
        case e.StateRef():
            return read.state(expr, state_row(expr, program))
        case e.Held(watch=watch):
            return read.held(watch, read.metric(program.metrics[watch.metric]))
        case e.TrafficTo():
            raise AssertionError(f"`{expr.span.text}` is asked of one node, and the members may be on any")
        case e.Aggregate():
            raise AssertionError(f"`{expr.span.text}` is asked of a pod alone")
        case e.Now():
            return lambda seen: seen.now_ns
        case e.Window(spans=spans, zone=zone):
            return do.window(spans, zone)
        case _:
            assert_never(expr)


def state_row(expr: e.StateRef, program: Declarations) -> Callable[[Seen], StateRow | None]:
    """What the state has for the pod's key, on whichever node; None where the key is missing."""
    key_of, name = compiled(expr.key, program), expr.name

    def row(seen: Seen) -> StateRow | None:
        key = key_of(seen)
        if key is None:
            return None
        table = seen.samples.get(name)
        return NOTHING_SEEN if table is None else table.rows.get(str(key), NOTHING_SEEN)

    return row
