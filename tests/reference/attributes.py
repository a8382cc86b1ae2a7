"""The built-in attributes of pods, nodes and namespaces.

Maps (`labels`, `requests`, ...) are read by key: an absent resource is 0, an absent label is
MISSING.
"""

from collections.abc import Callable, Mapping

from policysched.cluster.cache import ClusterCache
from policysched.cluster.node_usage import NodeUsage
from policysched.lang.ir.expr import Owner
from policysched.model.namespaces import Namespace
from policysched.model.pod_groups import PodGroup
from policysched.model.pods import Pod
from tests.reference.context import ExpressionContext, namespace_share
from tests.reference.values import MISSING, Value, saturated


def attribute(owner: Owner, path: tuple[str, ...], context: ExpressionContext) -> Value:
    match owner:
        case "pod":
            return _pod_attribute(path, context.pod, context)
        case "node":
            return _node_attribute(path, context)
        case "namespace":
            return _namespace_attribute(path, context.namespace, context.cache)
        case "other":
            assert context.other is not None, "no pod is being counted here"
            if path[0] == "node":
                assert context.other_node is not None, "the counted pod may be on no node"
                node = context._replace(node=context.other_node, usage=NodeUsage())
                return _node_attribute(path[1:], node)
            return _pod_attribute(path, context.other, context)
        case "victim":
            assert context.victim is not None, "no victim is being considered here"
            if path[:2] == ("namespace", "share"):
                assert context.cache is not None, "the shares of no cluster"
                return namespace_share(context.victim.namespace, path[2], context.cache)
            return _pod_attribute(path, context.victim, context)


_POD_PLAIN: dict[str, Callable[[Pod], Value]] = {
    "name": lambda pod: pod.name,
    "namespace": lambda pod: pod.namespace,
    "uid": lambda pod: pod.uid,
    "priority": lambda pod: pod.priority,
    "qos": lambda pod: pod.qos,
    "created": lambda pod: pod.created_ns,
    "deadline": lambda pod: MISSING if pod.deadline_ns is None else pod.deadline_ns,
    "scheduler": lambda pod: pod.scheduler,
    "service_account": lambda pod: pod.service_account,
    "images": lambda pod: pod.images,
    "ready": lambda pod: pod.ready,
    "tolerations": lambda pod: tuple(toleration.key for toleration in pod.tolerations),
}


_GROUP: Mapping[str, Callable[[PodGroup], Value | None]] = {
    "name": lambda group: group.key.name,
    "min": lambda group: group.minimum,
    "topology": lambda group: group.topology,
    "timeout": lambda group: group.timeout_ns,
    "disruption": lambda group: group.disruption,
    "workload": lambda group: group.workload,
    "api": lambda group: group.key.api,
}


def _present(field: Value | None) -> Value:
    return MISSING if field is None else field


def _pod_attribute(path: tuple[str, ...], pod: Pod, context: ExpressionContext) -> Value:
    match path:
        case ("labels", key):
            return _entry(pod.labels, key)
        case ("annotations", key):
            return _entry(pod.annotations, key)
        case ("requests", resource):
            return 1 if resource == "pods" else pod.requests.get(resource, 0)
        case ("limits", resource):
            return pod.limits.get(resource, 0)
        case ("owner", "kind"):
            return pod.owner_kind
        case ("owner", "name"):
            return pod.owner_name
        case ("queued",):
            assert context.queue_info is not None, "the checker rejects reading the queue here"
            return context.queue_info.queued_ns
        case ("attempts",):
            assert context.queue_info is not None, "the checker rejects reading the queue here"
            return context.queue_info.attempts
        case ("waited",):
            assert context.queue_info is not None and context.now_ns is not None, (
                "the checker rejects reading the queue here"
            )
            return saturated(context.now_ns - context.queue_info.queued_ns)
        case ("group", name):
            return MISSING if pod.group is None else _present(_GROUP[name](pod.group))
        case (name,):
            return _POD_PLAIN[name](pod)
        case _:
            raise AssertionError(f"a pod has no attribute {path}")


def _node_attribute(path: tuple[str, ...], context: ExpressionContext) -> Value:
    node, usage = context.node, context.usage
    assert node is not None and usage is not None, f"node.{'.'.join(path)} is read where there is no node"
    match path:
        case ("name",):
            return node.name
        case ("labels", key):
            return _entry(node.labels, key)
        case ("annotations", key):
            return _entry(node.annotations, key)
        case ("objects", kind):
            return _entry(node.objects, kind)
        case ("conditions", kind):
            return _entry(node.conditions, kind)
        case ("allocatable", resource):
            return node.allocatable.get(resource, 0)
        case ("requested", resource):
            return _requested(usage, resource)
        case ("free", resource):
            return saturated(node.allocatable.get(resource, 0) - _requested(usage, resource))
        case ("pods",):
            return len(usage.pods)
        case ("taints",):
            return tuple(taint.key for taint in node.taints)
        case ("taint_values", key):
            return next((taint.value for taint in node.taints if taint.key == key), MISSING)
        case ("images",):
            return tuple(node.images)
        case ("created",):
            return node.created_ns
        case ("ready",):
            return node.ready
        case ("unschedulable",):
            return node.unschedulable
        case _:
            raise AssertionError(f"a node has no attribute {path}")


def _requested(usage: NodeUsage, resource: str) -> int:
    """Each pod counts as one of the resource `pods`."""
    return len(usage.pods) if resource == "pods" else usage.requested_capped(resource)


def _namespace_attribute(path: tuple[str, ...], namespace: Namespace, cache: ClusterCache | None) -> Value:
    match path:
        case ("name",):
            return namespace.name
        case ("labels", key):
            return _entry(namespace.labels, key)
        case ("annotations", key):
            return _entry(namespace.annotations, key)
        case ("share", resource):
            assert cache is not None, "a namespace share needs the cluster"
            return namespace_share(namespace.name, resource, cache)
        case _:
            raise AssertionError(f"a namespace has no attribute {path}")


def _entry(entries: Mapping[str, str], key: str) -> Value:
    return entries.get(key, MISSING)
