"""Reads of resources that the policy declares.

Each read is expanded to the declared expressions: `pod.requests.NAME` is the request, `node.requested.NAME`
the sum of the requests of the pods on the node, and `node.free.NAME` the capacity minus that sum. The
analyses of expressions (presence, requeue events, sharing) thus apply to resources.
"""

from policysched.lang.check.attributes import is_readable
from policysched.lang.check.scope import ExpressionContext, Scope, declared_here
from policysched.lang.ir import expr as e
from policysched.lang.ir.attributes import OWNERS
from policysched.lang.ir.declarations import ResourceSpec
from policysched.lang.ir.expr_analysis import is_floating, walk
from policysched.lang.ir.transform import with_owner, with_span
from policysched.lang.syntax import tree as s

_NODE_AMOUNTS = frozenset({"allocatable", "requested", "free"})


def check_resource_amount(scope: Scope, node: s.AttributeExpr, context: ExpressionContext) -> e.Expr | None:
    """The amount as an expression; None after a diagnostic. Requires `is_resource_amount`."""
    declared = scope.resources[node.path[-1].text]
    declared.used = True
    resource = declared.definition
    if resource is None:
        return None
    expr = with_span(_amount_expression(resource, node), node.span)
    if not context.metrics and any(isinstance(part, e.MetricRef) for part in walk(expr)):
        scope.report(
            "PS220",
            f"{context.description} cannot read `{node.span.text}`",
            node.span,
            label="its capacity is a metric",
            related=(declared_here(declared.span),),
        )
        return None
    return expr


def is_resource_amount(scope: Scope, node: s.AttributeExpr, context: ExpressionContext) -> bool:
    """Whether it reads a resource that the policy declares, in a context that can read its owner."""
    if node.owner not in OWNERS or not is_readable(node.owner, context):
        return False
    if len(node.path) != 2 or node.path[1].text not in scope.resources:
        return False
    word = node.path[0].text
    return (
        word in _NODE_AMOUNTS
        if node.owner == "node"
        else word == "requests" and node.owner in ("pod", "other", "victim")
    )


def _amount_expression(resource: ResourceSpec, node: s.AttributeExpr) -> e.Expr:
    match node.owner, node.path[0].text:
        case "pod", _:
            return resource.request
        case "other", _:
            return with_owner("other", resource.request)
        case "victim", _:
            return with_owner("victim", resource.request)
        case _, "allocatable":
            return resource.capacity
        case _, "requested":
            return _requested_sum(resource)
        case _:
            floating = resource.type.is_float64 or is_floating(resource.capacity)
            return e.Arith(
                "-", resource.capacity, _requested_sum(resource), resource.type, floating, resource.span
            )


def _requested_sum(resource: ResourceSpec) -> e.SumPodsOnNode:
    return e.SumPodsOnNode(with_owner("other", resource.request), resource.type, resource.span)
