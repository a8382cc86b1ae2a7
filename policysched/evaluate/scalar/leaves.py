"""What expressions read, as plain functions: attributes, inputs, metrics, states, the element that is looked at."""

from collections.abc import Callable, Mapping
from operator import attrgetter

from policysched.cluster.samples import ALL_NODES, StateRow
from policysched.cluster.usage import NodeUsage
from policysched.evaluate.scalar.eval_context import EvalContext, EvalValue, ScalarFunction, expect_number
from policysched.lang.ir import expr as e
from policysched.lang.ir.arithmetic import arithmetic, saturate
from policysched.lang.ir.declarations import Input, Metric
from policysched.lang.types.records import NoValueReason, parse_typed_value
from policysched.model.nodes import Node
from policysched.model.pods import Pod


def attribute(owner: e.Owner, path: tuple[str, ...]) -> ScalarFunction:
    match owner:
        case "pod":
            return _pod_attribute(path, lambda seen: seen.pod)
        case "other" | "victim":
            return _pod_attribute(path, _other_pod)
        case "node":
            return _node_attribute(path)
        case "namespace":
            return _namespace_attribute(path)


def _other_pod(seen: EvalContext) -> Pod:
    assert seen.other is not None, "no other pod is being looked at"
    return seen.other


_POD_FIELDS: Mapping[str, str] = {
    "name": "name",
    "namespace": "namespace",
    "uid": "uid",
    "priority": "priority",
    "qos": "qos",
    "created": "created_ns",
    "deadline": "deadline_ns",
    "scheduler": "scheduler",
    "service_account": "service_account",
    "images": "images",
}


def _pod_attribute(path: tuple[str, ...], whose: Callable[[EvalContext], Pod]) -> ScalarFunction:
    match path:
        case ("labels" | "annotations" as name, key):
            entries = attrgetter(name)
            return lambda seen: entries(whose(seen)).get(key)
        case ("requests", "pods"):
            return lambda seen: 1
        case ("requests" | "limits" as name, resource):
            amounts = attrgetter(name)
            return lambda seen: amounts(whose(seen)).get(resource, 0)
        case ("owner", "kind" | "name" as part):
            owner = attrgetter(f"owner_{part}")
            return lambda seen: owner(whose(seen))
        case ("queued",):
            return lambda seen: seen.queue_facts.queued_ns
        case ("attempts",):
            return lambda seen: seen.queue_facts.attempts
        case ("waited",):
            return lambda seen: saturate(seen.now_ns - seen.queue_facts.queued_ns)
        case ("tolerations",):
            return lambda seen: tuple(one.key for one in whose(seen).tolerations)
        case (name,):
            plain = attrgetter(_POD_FIELDS[name])
            return lambda seen: plain(whose(seen))
        case _:
            raise AssertionError(f"a pod has no attribute {path}")


def _node_attribute(path: tuple[str, ...]) -> ScalarFunction:
    def node(seen: EvalContext) -> Node:
        assert seen.node is not None, f"node.{'.'.join(path)} is asked where there is no node"
        return seen.node

    def usage(seen: EvalContext) -> NodeUsage:
        assert seen.usage is not None, f"node.{'.'.join(path)} is asked where there is no node"
        return seen.usage

    match path:
        case ("labels" | "annotations" | "conditions" | "objects" as name, key):
            entries = attrgetter(name)
            return lambda seen: entries(node(seen)).get(key)
        case ("allocatable", resource):
            return lambda seen: node(seen).allocatable.get(resource, 0)
        case ("pods",) | ("requested", "pods"):
            return lambda seen: len(usage(seen).pods)
        case ("requested", resource):
            return lambda seen: usage(seen).requested_capped(resource)
        case ("free", resource):
            requested = _node_attribute(("requested", resource))
            return lambda seen: saturate(
                node(seen).allocatable.get(resource, 0) - int(expect_number(requested(seen)))
            )
        case ("taints",):
            return lambda seen: tuple(taint.key for taint in node(seen).taints)
        case ("images",):
            return lambda seen: tuple(node(seen).images)
        case ("created",):
            return lambda seen: node(seen).created_ns
        case ("name",):
            return lambda seen: node(seen).name
        case ("ready",):
            return lambda seen: node(seen).ready
        case _:
            raise AssertionError(f"a node has no attribute {path}")


def _namespace_attribute(path: tuple[str, ...]) -> ScalarFunction:
    match path:
        case ("labels" | "annotations" as name, key):
            entries = attrgetter(name)
            return lambda seen: entries(seen.namespace).get(key)
        case ("name",):
            return lambda seen: seen.namespace.name
        case ("share", resource):
            part = attrgetter(resource)
            return lambda seen: float(part(seen.shares.share_of(seen.namespace.name)))
        case _:
            raise AssertionError(f"a namespace has no attribute {path}")


def input_text(declared: Input, of: e.Owner = "pod") -> Callable[[EvalContext], str | None]:
    """The text that an input reads, None where there is none. An input of the pod can be read of another one."""
    owner = attrgetter(f"{declared.owner if of == 'pod' else 'other'}.{declared.source_map}")
    key = declared.source_key
    return (lambda seen: str(owner(seen))) if key is None else (lambda seen: owner(seen).get(key))


def input_value(declared: Input, of: e.Owner = "pod") -> ScalarFunction:
    """The value for expressions. Where the input refuses its pod or node there is none."""
    text_of, default = input_text(declared, of), None if declared.default is None else declared.default.value

    def value(seen: EvalContext) -> EvalValue:
        text = text_of(seen)
        if text is not None:
            found = parse_typed_value(text, declared.type, declared.unit, declared.json_path)
            if not isinstance(found, NoValueReason):
                return found
            if found is NoValueReason.INVALID and declared.invalid_text is not None:
                return None
        return default

    return value


def metric_value(metric: Metric) -> ScalarFunction:
    name, stale_ns, floating = metric.name, metric.stale_after_ns, metric.type.is_float64

    def value(seen: EvalContext) -> EvalValue:
        assert seen.node is not None, f"metric {name} is asked where there is no node"
        polled = seen.samples.get(name)
        sample = None if polled is None else polled.values.get(seen.node.name)
        if polled is None or sample is None:
            return None
        if seen.now_ns - min(sample.at_ns, polled.polled_ns) > stale_ns:
            return None
        held = sample.value if floating else int(sample.value)
        return arithmetic("+", held, polled.assumed.get(seen.node.name, 0), floating=floating)

    return value


def element_field(index: int) -> ScalarFunction:
    def value(seen: EvalContext) -> EvalValue:
        assert seen.element is not None, "no list is being looked through"
        return seen.element[index]

    return value


def awaiting_recovery(watch: e.RecoveryCondition, metric: ScalarFunction) -> ScalarFunction:
    def value(seen: EvalContext) -> EvalValue:
        if metric(seen) is None:
            return None
        assert seen.node is not None, f"metric {watch.metric} is asked where there is no node"
        until_ns = seen.samples[watch.metric].recovering_until_ns.get(watch, {}).get(seen.node.name)
        return until_ns is not None and seen.now_ns < until_ns

    return value


def state_value(expr: e.StateRef, row_of: Callable[[EvalContext], StateRow | None]) -> ScalarFunction:
    def value(seen: EvalContext) -> EvalValue:
        row = row_of(seen)
        assert seen.node is not None, f"{expr.name} is read of a node"
        node = ALL_NODES if expr.is_cluster_wide else seen.node.name
        return row.values.get(node, expr.start) if row is not None else None

    return value
