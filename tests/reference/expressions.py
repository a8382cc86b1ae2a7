"""The value of an expression in a context: one case for each kind of expression. `lang.ir.expr`
documents the rules.

`aggregates` and `traffic` evaluate expressions, too. They get `value` as an argument, so that they
need not import this module.
"""

import hashlib
import math
import sys
from datetime import UTC, datetime
from fractions import Fraction
from typing import assert_never
from zoneinfo import ZoneInfo

from policysched.cluster.metric_samples import ALL_NODES, DecayingStateRow
from policysched.lang.ir import expr as e
from policysched.lang.ir.declarations import Metric
from policysched.lang.ir.distributions import beta_cdf, normal_cdf
from policysched.lang.ir.expr_analysis import is_floating, type_of
from policysched.lang.ir.program import Program
from policysched.lang.types.kinds import FLOAT64_MAX
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from tests.reference.aggregates import aggregate
from tests.reference.attributes import attribute
from tests.reference.context import ExpressionContext, pod_context
from tests.reference.inputs import input_value
from tests.reference.metrics import is_recovering, metric_value
from tests.reference.traffic import traffic_to
from tests.reference.values import (
    MISSING,
    Number,
    Value,
    arithmetic,
    finite,
    rounded,
    saturated,
    transcendental,
)


def value(expr: e.Expr, context: ExpressionContext) -> Value:
    """The value in the stored form of its type, or MISSING."""
    match expr:
        case e.Const():
            return expr.value
        case e.Attr():
            return attribute(expr.owner, expr.path, context)
        case e.InputRef():
            return input_value(context.program.inputs[expr.name], _owner_context(expr.owner, context))
        case e.MetricRef():
            return _metric(expr, context)
        case e.GangTraffic():
            return traffic_to(expr, context, value)
        case e.StateRef():
            return _state(expr, context)
        case e.Has():
            return value(expr.target, context) is not MISSING
        case e.Not():
            operand = value(expr.operand, context)
            return MISSING if operand is MISSING else not operand
        case e.And():
            return _kleene([value(item, context) for item in expr.items], decisive=False)
        case e.Or():
            return _kleene([value(item, context) for item in expr.items], decisive=True)
        case e.Compare():
            return _compare(expr, context)
        case e.In():
            return _contains(expr, context)
        case e.Arith():
            return _arithmetic(expr, context)
        case e.Negate():
            return _negated(value(expr.operand, context))
        case e.Call():
            return _call(expr, context)
        case e.Rank():
            return _rank(expr, context)
        case e.StartsWith():
            text = value(expr.text, context)
            return MISSING if text is MISSING else str(text)[: len(expr.prefix)] == expr.prefix
        case e.Split():
            text = value(expr.text, context)
            if text is MISSING:
                return MISSING
            parts = (part.strip(" ") for part in str(text).split(expr.separator))
            return tuple(part for part in parts if part != "")
        case e.Bucket():
            text = value(expr.text, context)
            if text is MISSING:
                return MISSING
            salted = expr.salt + str(text)
            return int(hashlib.blake2b(salted.encode(), digest_size=8).hexdigest(), 16) % expr.count
        case e.Else():
            return _with_fallback(expr, context)
        case e.If():
            return _if(expr, context)
        case e.NotRecovered():
            return is_recovering(expr.condition, context)
        case e.Aggregate():
            return aggregate(expr, context, value)
        case e.CountPodsOnNode():
            return _count_pods(expr, context)
        case e.PodTotal():
            return _pod_total(expr, context)
        case e.SumPodsOnNode():
            return _sum_pods(expr, context)
        case e.ElementField():
            return _element_field(expr, context)
        case e.ListFold():
            return _fold(expr, context)
        case e.Now():
            assert context.now_ns is not None, "the checker rejects reading the clock here"
            return context.now_ns
        case e.WeeklyWindow():
            return _inside_window(expr, context)
        case _:
            assert_never(expr)


def holds(expr: e.Expr | None, context: ExpressionContext) -> bool:
    """Whether a condition is True. No condition counts as True, MISSING does not."""
    return expr is None or value(expr, context) is True


def assumed_load(program: Program, metric: Metric, pod: Pod, namespace: Namespace | None) -> Number:
    """The load that the metric assumes for a pod until a sample includes it, in the stored unit. 0
    if it assumes none or has no value for this pod."""
    if metric.assumed_load is None:
        return 0
    load = value(metric.assumed_load, pod_context(program, pod, namespace))
    if load is MISSING:
        return 0
    assert isinstance(load, int | float), f"{metric.name} assumes {load!r} for {pod.full_name}"
    return load


def _metric(expr: e.MetricRef, context: ExpressionContext) -> Value:
    metric = context.program.metrics[expr.name]
    current = metric_value(metric, context)
    if current is MISSING or not context.after_placement or metric.assumed_load is None:
        return current
    load = assumed_load(context.program, metric, context.pod, context.namespace)
    floating = metric.type.is_float64
    return arithmetic("+", _number(current), load if floating else int(load), floating=floating)


def _kleene(items: list[Value], *, decisive: bool) -> Value:
    """`and` with decisive False, `or` with decisive True: a decisive item decides even if other
    items are missing."""
    if decisive in items:
        return decisive
    return MISSING if MISSING in items else not decisive


def _compare(expr: e.Compare, context: ExpressionContext) -> Value:
    left, right = value(expr.left, context), value(expr.right, context)
    if left is MISSING or right is MISSING:
        return MISSING
    if is_floating(expr.left) or is_floating(expr.right):
        left, right = float(_number(left)), float(_number(right))
    match expr.op:
        case "==":
            return left == right
        case "!=":
            return left != right
    low, high = _number(left), _number(right)
    match expr.op:
        case "<":
            return low < high
        case "<=":
            return low <= high
        case ">":
            return low > high
        case ">=":
            return low >= high


def _contains(expr: e.In, context: ExpressionContext) -> Value:
    item, options = value(expr.item, context), value(expr.options, context)
    if item is MISSING or options is MISSING:
        return MISSING
    assert isinstance(options, tuple), f"`in` needs a list, not {options!r}"
    element = type_of(expr.options).element
    if is_floating(expr.item) or (element is not None and element.is_float64):
        return float(_number(item)) in [float(_number(option)) for option in options]
    return item in options


def _arithmetic(expr: e.Arith, context: ExpressionContext) -> Value:
    left, right = value(expr.left, context), value(expr.right, context)
    if left is MISSING or right is MISSING:
        return MISSING
    return arithmetic(expr.op, _number(left), _number(right), floating=expr.floating)


def _negated(operand: Value) -> Value:
    if operand is MISSING:
        return MISSING
    number = _number(operand)
    return -number if isinstance(number, float) else saturated(-number)


def _call(expr: e.Call, context: ExpressionContext) -> Value:
    args: list[Number] = []
    for arg in expr.args:
        argument = value(arg, context)
        if argument is MISSING:
            return MISSING
        number = _number(argument)
        args.append(float(number) if expr.floating else number)
    match expr.function:
        case "min":
            return min(args)
        case "max":
            return max(args)
        case "clamp":
            # With low > high the upper bound wins.
            number, low, high = args
            return min(max(number, low), high)
        case "abs":
            return abs(args[0]) if isinstance(args[0], float) else saturated(abs(args[0]))
        case "normal_cdf":
            return normal_cdf(*map(float, args))
        case "beta_cdf":
            return beta_cdf(*map(float, args))
        case "floor" | "ceil" | "round" | "round_half_up" | "round_half_away" | "trunc":
            return rounded(expr.function, args[0])
        case "sqrt" | "log" | "exp":
            return transcendental(expr.function, float(args[0]))


def _rank(expr: e.Rank, context: ExpressionContext) -> Value:
    """The index in the order; unlisted values come last."""
    item = value(expr.item, context)
    if item is MISSING:
        return MISSING
    return expr.order.index(item) if item in expr.order else len(expr.order)


def _with_fallback(expr: e.Else, context: ExpressionContext) -> Value:
    result = value(expr.value, context)
    if result is MISSING:
        result = value(expr.fallback, context)
    return float(_number(result)) if expr.floating and result is not MISSING else result


def _if(expr: e.If, context: ExpressionContext) -> Value:
    """The other branch is not evaluated, so it may be missing."""
    condition = value(expr.condition, context)
    if condition is MISSING:
        return MISSING
    result = value(expr.then if condition else expr.otherwise, context)
    return float(_number(result)) if expr.floating and result is not MISSING else result


def _count_pods(expr: e.CountPodsOnNode, context: ExpressionContext) -> Value:
    assert context.usage is not None, "counting pods needs a node"
    return sum(holds(expr.where, context._replace(other=other)) for other in context.usage.pods.values())


def _state(expr: e.StateRef, context: ExpressionContext) -> Value:
    """The value that was fed under the pod's key on this node, or `start`. Of a decaying one what is left: half of the
    difference from `start` after one half-life, in 64 steps for each, none after 20."""
    key = value(expr.key, context)
    if key is MISSING:
        return MISSING
    assert context.node is not None and isinstance(key, str), (
        f"{expr.name} needs a node and a key, not {key!r}"
    )
    node = ALL_NODES if expr.is_cluster_wide else context.node.name
    table = context.samples.get(expr.name)
    row = None if table is None else table.state_rows.get(key)
    if row is None:
        return expr.start
    if not isinstance(row, DecayingStateRow):
        return row.values.get(node, expr.start)
    if node not in row.timed_values:
        return expr.start
    fed, fed_ns = row.timed_values[node]
    step_ns = row.decay.half_life_ns // 64
    steps = max(0, context.now_ns // step_ns - fed_ns // step_ns)
    if steps >= 20 * 64:
        return row.decay.start
    return fed if steps == 0 else row.decay.start + (fed - row.decay.start) * math.exp2(-steps / 64)


def _pod_total(expr: e.PodTotal, context: ExpressionContext) -> Value:
    """Counted once for each pod where it is the same for all nodes."""
    if expr.topology_key is not None:
        return _counted_total(expr, context)
    key = (id(expr), id(context.pod))
    if key not in context.cluster_counts:
        context.cluster_counts[key] = _counted_total(expr, context)
    return context.cluster_counts[key]


def _counted_total(expr: e.PodTotal, context: ExpressionContext) -> Value:
    """Counts one pod after the other."""
    pods = _placed_pods(expr, context) if expr.scope == "placed" else _cluster_pods(expr, context)
    if pods is None:
        return MISSING
    counted = [context._replace(other=other, other_node=node, node=None, usage=None) for other, node in pods]
    counted = [of_other for of_other in counted if holds(expr.where, of_other)]
    if expr.value is None:
        return len(counted)
    amounts = [value(expr.value, of_other) for of_other in counted]
    total = sum((Fraction(_number(amount)) for amount in amounts if amount is not MISSING), Fraction())
    if not expr.floating:
        return saturated(int(total))
    largest = Fraction(sys.float_info.max)
    return float(max(-largest, min(largest, total)))


def _placed_pods(expr: e.PodTotal, context: ExpressionContext) -> list[tuple[Pod, Node]] | None:
    """The pods on all nodes, or on those in the domain of the node; None: it is in no domain."""
    cache, key = context.cache, expr.topology_key
    assert cache is not None, "the checker rejects counting the cluster's pods here"
    nodes = list(cache.nodes.values())
    if key is not None:
        assert context.node is not None, "the domain of no node"
        domain = context.node.labels.get(key)
        if domain is None:
            return None
        nodes = [node for node in nodes if node.labels.get(key) == domain]
    placed = list[tuple[Pod, Node]]()
    for node in nodes:
        usage = cache.ledger.usage(node.name)
        if key is not None and context.node is not None and node.name == context.node.name:
            assert context.usage is not None, "a node without its usage"
            usage = context.usage  # may have nominated pods, which count on their node alone
        placed += [(pod, node) for pod in usage.pods.values()]
    return placed


def _cluster_pods(expr: e.PodTotal, context: ExpressionContext) -> list[tuple[Pod, None]]:
    cache = context.cache
    assert cache is not None, "the checker rejects counting the cluster's pods here"
    pods = {observed.pod.uid: observed.pod for observed in cache.pods.values() if not observed.deleting}
    if context.pod.uid not in cache.pods:
        pods[context.pod.uid] = context.pod
    if expr.scope == "all":
        pods.update(cache.ended_pods.pods)
    return [(pod, None) for pod in pods.values()]


def _owner_context(of: e.Owner, context: ExpressionContext) -> ExpressionContext:
    """The context of an input's owner: the pod itself, the counted pod or the victim."""
    match of:
        case "other":
            assert context.other is not None, "no pod is being counted here"
            return context._replace(pod=context.other)
        case "victim":
            assert context.victim is not None, "no victim is being considered here"
            return context._replace(pod=context.victim)
        case _:
            return context


def _sum_pods(expr: e.SumPodsOnNode, context: ExpressionContext) -> Value:
    assert context.usage is not None, "summing over pods needs a node"
    total = 0
    for other in context.usage.pods.values():
        amount = value(expr.value, context._replace(other=other))
        if amount is not MISSING:
            total += max(0, math.ceil(_number(amount)))
    return float(min(total, int(FLOAT64_MAX))) if expr.type.is_float64 else saturated(total)


def _element_field(expr: e.ElementField, context: ExpressionContext) -> Value:
    assert context.element is not None, f"{expr.name} is read outside of a list"
    field = context.element[expr.index]
    return MISSING if field is None else field


def _fold(expr: e.ListFold, context: ExpressionContext) -> Value:
    """See `lang.ir.expr.ListFold`."""
    items = value(expr.items, context)
    if items is MISSING:
        return MISSING
    assert isinstance(items, tuple), f"{expr.items.name} is {items!r}, not a list"
    numbers: list[Number] = []
    count = 0
    for item in items:
        assert isinstance(item, tuple), f"{item!r} is not a record"
        inside = context._replace(element=item)
        if not holds(expr.where, inside):
            continue
        count += 1
        element = MISSING if expr.value is None else value(expr.value, inside)
        if element is not MISSING:
            numbers.append(_number(element))
    match expr.function:
        case "count":
            return count
        case "any":
            return count > 0
        case "min":
            return min(numbers, default=MISSING)
        case "max":
            return max(numbers, default=MISSING)
        case "sum":
            return _sum(numbers, floating=expr.floating)


def _sum(numbers: list[Number], *, floating: bool) -> Number:
    if not floating:
        return saturated(sum(int(number) for number in numbers))
    total = 0.0
    for number in numbers:
        total += float(number)
    return finite(total)


def _inside_window(expr: e.WeeklyWindow, context: ExpressionContext) -> Value:
    assert context.now_ns is not None, "the checker rejects reading the clock here"
    local = datetime.fromtimestamp(context.now_ns // 10**9, tz=UTC).astimezone(ZoneInfo(expr.time_zone))
    minute = local.weekday() * 24 * 60 + local.hour * 60 + local.minute
    return any(start <= minute < end for start, end in expr.minute_ranges)


def _number(number: object) -> Number:
    assert isinstance(number, int | float), f"{number!r} is not a number"
    return number
