"""The compiler of expressions to Python functions of one pod and, where needed, one node.

What depends on the pod alone is evaluated once per pod and never becomes an array: queue order,
gangs, layers, most `when` conditions, the right-hand side of most comparisons. Messages are filled
in with the same functions. A missing value is None.
"""

from collections.abc import Callable
from typing import assert_never

from policysched.cluster.metric_samples import StateRow
from policysched.evaluate.scalar import leaves, operations
from policysched.evaluate.scalar.eval_context import EvalContext, ExprDeclarations, ScalarFunction
from policysched.lang.ir import expr as e
from policysched.lang.ir.text_functions import bucket_of, parts_of

EMPTY_STATE_ROW = StateRow({})


def compile_scalar(expr: e.Expr, program: ExprDeclarations) -> ScalarFunction:
    """The function that returns the expression's value. One case per class of expression: `leaves`
    has what is read, `operations` what is computed."""

    def function(operand: e.Expr) -> ScalarFunction:
        return compile_scalar(operand, program)

    match expr:
        case e.Const(value=value):
            return lambda context: value
        case e.Attr(owner=owner, path=path):
            return leaves.attribute(owner, path)
        case e.InputRef(name=name, owner=of):
            return leaves.input_value(program.inputs[name], of)
        case e.MetricRef(name=name):
            return leaves.metric_value(program.metrics[name])
        case e.Has(target=target):
            value_of = function(target)
            return lambda context: value_of(context) is not None
        case e.Not(operand=operand):
            return operations.logical_not(function(operand))
        case e.And(items=items):
            return operations.logical_connective([function(item) for item in items], decisive=False)
        case e.Or(items=items):
            return operations.logical_connective([function(item) for item in items], decisive=True)
        case e.Compare():
            return operations.comparison(expr, function(expr.left), function(expr.right))
        case e.In():
            return operations.membership(expr, function(expr.item), function(expr.options))
        case e.Arith():
            return operations.binary_arithmetic(expr, function(expr.left), function(expr.right))
        case e.Negate(operand=operand):
            return operations.arithmetic_negation(function(operand))
        case e.Call():
            return operations.function_call(expr, [function(arg) for arg in expr.args])
        case e.Rank(item=item, order=order):
            return operations.rank(function(item), order)
        case e.StartsWith(text=text, prefix=prefix):
            return operations.text_function(function(text), lambda value: value.startswith(prefix))
        case e.Bucket(text=text, count=count, salt=salt):
            return operations.text_function(function(text), lambda value: bucket_of(value, count, salt))
        case e.Split(text=text, separator=separator):
            return operations.text_function(function(text), lambda value: parts_of(value, separator))
        case e.Else():
            return operations.value_or_fallback(expr, function(expr.value), function(expr.fallback))
        case e.If():
            return operations.conditional(
                expr, function(expr.condition), function(expr.then), function(expr.otherwise)
            )
        case e.CountPodsOnNode(where=where):
            return operations.pod_count(None if where is None else function(where))
        case e.PodTotal():
            return operations.pod_total(expr, program)
        case e.SumPodsOnNode():
            return operations.pod_sum(expr, function(expr.value))
        case e.ElementField(index=index):
            return leaves.element_field(index)
        case e.ListFold():
            return operations.fold(
                expr,
                function(expr.items),
                None if expr.where is None else function(expr.where),
                None if expr.value is None else function(expr.value),
            )
        case e.StateRef():
            return leaves.state_value(expr, compile_state_row(expr, program))
        case e.NotRecovered(condition=condition):
            return leaves.awaiting_recovery(condition, leaves.metric_value(program.metrics[condition.metric]))
        case e.GangTraffic():
            raise AssertionError(f"`{expr.span.text}` reads all nodes and has no scalar form")
        case e.Aggregate():
            raise AssertionError(f"`{expr.span.text}` reads all candidates and has no scalar form")
        case e.Now():
            return lambda context: context.now_ns
        case e.WeeklyWindow(minute_ranges=spans, time_zone=zone):
            return operations.window(spans, zone)
        case _:
            assert_never(expr)


def compile_state_row(
    expr: e.StateRef, program: ExprDeclarations
) -> Callable[[EvalContext], StateRow | None]:
    """The reader of the state's values under the pod's key, by node; None where the key is missing."""
    key_of, name = compile_scalar(expr.key, program), expr.name

    def row(context: EvalContext) -> StateRow | None:
        key = key_of(context)
        if key is None:
            return None
        table = context.samples.get(name)
        state_row = None if table is None else table.state_rows.get(str(key))
        return EMPTY_STATE_ROW if state_row is None else state_row.at(context.now_ns)

    return row
