"""Readers of what expressions name: attributes, inputs, metrics, states and fields of records.

The readers of built-in attributes follow from the rows of `lang.ir.attributes`: a new attribute
that is a field of its owner needs no code here.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import cast

from policysched.cluster.metric_samples import ALL_NODES, StateRow
from policysched.cluster.node_usage import NodeUsage
from policysched.evaluate.scalar.eval_context import EvalContext, EvalValue, ScalarFunction, expect_number
from policysched.lang.ir import expr as e
from policysched.lang.ir.arithmetic import arithmetic, saturate
from policysched.lang.ir.attributes import BuiltinAttribute, find_attribute
from policysched.lang.ir.declarations import Input, Metric
from policysched.lang.ir.recovery_condition import RecoveryCondition
from policysched.lang.types.kinds import TypeKind
from policysched.lang.types.records import NoValueReason, parse_typed_value
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pods import Pod


def attribute(owner: e.Owner, path: tuple[str, ...]) -> ScalarFunction:
    """The reader of a built-in attribute, derived from the `field` of its row."""
    row, key = find_attribute(owner, path), path[-1]
    source, _, name = row.field.partition(".")
    match source:
        case "facts":
            return _queue_fact(name)
        case "usage":
            return _node_total(name, key)
        case "quotas":
            return _quota_share(key)
        case "group":
            return _group_field(row, name)
        case "share":
            return lambda context: context.shares.share_of(context.namespace.name, key)
        case "victim_share":
            return lambda context: context.shares.share_of(_other_pod(context).namespace, key)
        case "node":
            return _node_of_other_pod(name, key)
        case _:
            return _owner_field(row, key)


def _owner_field(row: BuiltinAttribute, key: str) -> ScalarFunction:
    owner_of = _OWNERS[row.owner]
    name, _, item_name = row.field.partition("[].")
    field = attrgetter(name)
    if row.key_kind == "texts":
        return lambda context: field(owner_of(context)).get(key)
    if name == "requests" and key == "pods":
        return lambda context: 1
    if row.key_kind == "resources":
        absent = _absent_item(row.owner, name, 0)
        return lambda context: field(owner_of(context)).get(key) or absent(context)
    if row.type.kind is TypeKind.LIST:
        absent = _absent_item(row.owner, name.removesuffix("[]"), ())
        if not item_name:
            return lambda context: tuple(field(owner_of(context))) or absent(context)
        item_field = attrgetter(item_name)
        return lambda context: tuple(map(item_field, field(owner_of(context)))) or absent(context)
    return lambda context: field(owner_of(context))


def _absent_item(owner: e.Owner, field: str, value: EvalValue) -> ScalarFunction:
    """The value where there is no such item: none is known of a pod that is kept without some of the field."""
    if owner == "node":
        return lambda context: value
    pod_of = _pod if owner == "pod" else _other_pod
    return lambda context: None if field in pod_of(context).dropped else value


def _pod(context: EvalContext) -> Pod:
    return context.pod


def _other_pod(context: EvalContext) -> Pod:
    assert context.other is not None, "the context has no other pod"
    return context.other


def _node(context: EvalContext) -> Node:
    assert context.node is not None, "the context has no node"
    return context.node


def _usage(context: EvalContext) -> NodeUsage:
    assert context.usage is not None, "the context has no node"
    return context.usage


def _namespace(context: EvalContext) -> Namespace:
    return context.namespace


_OWNERS: Mapping[e.Owner, Callable[[EvalContext], Pod | Node | Namespace]] = {
    "pod": _pod,
    "other": _other_pod,
    "victim": _other_pod,
    "node": _node,
    "namespace": _namespace,
}


def _queue_fact(name: str) -> ScalarFunction:
    if name == "waited":
        return lambda context: saturate(context.now_ns - context.queue_facts.queued_ns)
    fact = attrgetter(name)
    return lambda context: fact(context.queue_facts)


def _node_total(name: str, key: str) -> ScalarFunction:
    match name, key:
        case ("pods", _) | ("requested", "pods"):
            return lambda context: _usage(context).pod_count
        case "requested", resource:
            return lambda context: _usage(context).requested_capped(resource)
        case "free", resource:
            requested = _node_total("requested", resource)
            return lambda context: saturate(
                _node(context).allocatable.get(resource, 0) - int(expect_number(requested(context)))
            )
        case _:
            raise AssertionError(f"a node has no total {name}")


def _quota_share(quota: str) -> ScalarFunction:
    def read(context: EvalContext) -> float:
        assert context.quota_share is not None, f"the context has no share of quota {quota}"
        return context.quota_share(quota)

    return read


def _group_field(row: BuiltinAttribute, name: str) -> ScalarFunction:
    owner_of, field = _OWNERS[row.owner], attrgetter(name)

    def read(context: EvalContext) -> EvalValue:
        pod = owner_of(context)
        assert isinstance(pod, Pod), f"{row.qualified_name} is not of a pod"
        return None if pod.group is None else cast(EvalValue, field(pod.group))

    return read


def _node_of_other_pod(name: str, key: str) -> ScalarFunction:
    """A field of the node that the counted pod is placed on, or the value of `key` in it."""
    field = attrgetter(name)
    if name == key:
        return lambda context: field(_other_node(context))
    return lambda context: field(_other_node(context)).get(key)


def _other_node(context: EvalContext) -> Node:
    assert context.other_node is not None, "the context has no node of another pod"
    return context.other_node


def input_text(declaration: Input, owner: e.Owner = "pod") -> Callable[[EvalContext], str | None]:
    """The text that an input reads; None: absent. `owner` may be another pod than the one being scheduled."""
    source = attrgetter(f"{declaration.owner if owner == 'pod' else 'other'}.{declaration.source_map}")
    key = declaration.source_key
    if key is None:
        return lambda context: str(source(context))
    return lambda context: source(context).get(key)


def input_value(declaration: Input, owner: e.Owner = "pod") -> ScalarFunction:
    """The input's value in expressions; None also where the input rejects its pod or node as invalid."""
    text_of = input_text(declaration, owner)
    default = None if declaration.default is None else declaration.default.value

    def evaluate(context: EvalContext) -> EvalValue:
        text = text_of(context)
        if text is not None:
            value = parse_typed_value(text, declaration.type, declaration.unit, declaration.json_path)
            if not isinstance(value, NoValueReason):
                return value
            if value is NoValueReason.INVALID and declaration.invalid_text is not None:
                return None
        return default

    return evaluate


def metric_value(metric: Metric) -> ScalarFunction:
    name, stale_ns, floating = metric.name, metric.stale_after_ns, metric.type.is_float64

    def evaluate(context: EvalContext) -> EvalValue:
        assert context.node is not None, f"metric {name} is read without a node"
        samples = context.samples.get(name)
        sample = None if samples is None else samples.values.get(context.node.name)
        if samples is None or sample is None:
            return None
        if context.now_ns - min(sample.at_ns, samples.polled_ns) > stale_ns:
            return None
        value = sample.value if floating else int(sample.value)
        return arithmetic("+", value, samples.assumed.get(context.node.name, 0), floating=floating)

    return evaluate


def element_field(index: int) -> ScalarFunction:
    def evaluate(context: EvalContext) -> EvalValue:
        assert context.element is not None, "the context has no element of a list"
        return context.element[index]

    return evaluate


def awaiting_recovery(condition: RecoveryCondition, metric: ScalarFunction) -> ScalarFunction:
    def evaluate(context: EvalContext) -> EvalValue:
        if metric(context) is None:
            return None
        assert context.node is not None, f"metric {condition.metric} is read without a node"
        recoveries = context.samples[condition.metric].recovering_until_ns.get(condition, {})
        until_ns = recoveries.get(context.node.name)
        return until_ns is not None and context.now_ns < until_ns

    return evaluate


def state_value(expr: e.StateRef, row_of: Callable[[EvalContext], StateRow | None]) -> ScalarFunction:
    def evaluate(context: EvalContext) -> EvalValue:
        row = row_of(context)
        assert context.node is not None, f"state {expr.name} is read without a node"
        node = ALL_NODES if expr.is_cluster_wide else context.node.name
        return row.values.get(node, expr.start) if row is not None else None

    return evaluate
