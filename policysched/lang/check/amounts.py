"""Where a policy reads its own resources.

Each way of reading one is written out in what it is declared by: `pod.requests.NAME` is the request, `node.requested.NAME`
the sum of the requests of the pods on the node, `node.free.NAME` the capacity less that sum. So whatever holds of expressions (what
may be missing, what wakes a refused pod, what is shared) holds of resources.
"""

from policysched.lang.check.attributes import readable
from policysched.lang.check.scope import Place, Scope, declared_at
from policysched.lang.ir import expr as e
from policysched.lang.ir.attributes import OWNERS
from policysched.lang.ir.program import Resource
from policysched.lang.ir.transform import asked_of, placed_at
from policysched.lang.syntax import tree as s

_AMOUNTS = frozenset({"allocatable", "requested", "free"})


def amount(scope: Scope, node: s.Attribute, place: Place) -> e.Expr | None:
    """What the policy's own resource is in this place, None after a finding. Only asked where `names_a_resource`."""
    declared = scope.resources[node.path[-1].text]
    declared.used = True
    resource = declared.value
    if resource is None:
        return None
    found = placed_at(_written_out(resource, node), node.span)
    if not place.metrics and any(isinstance(one, e.MetricRef) for one in e.walk(found)):
        scope.report(
            "PS220",
            f"{place.word} cannot read `{node.span.text}`",
            node.span,
            label="its capacity is a metric",
            related=(declared_at(declared.span),),
        )
        return None
    return found


def names_a_resource(scope: Scope, node: s.Attribute, place: Place) -> bool:
    """Whether it is an amount of a resource that the policy declares, in a place that may read its owner."""
    if node.owner not in OWNERS or not readable(node.owner, place):
        return False
    if len(node.path) != 2 or node.path[1].text not in scope.resources:
        return False
    word = node.path[0].text
    return (
        word in _AMOUNTS
        if node.owner == "node"
        else word == "requests" and node.owner in ("pod", "other", "victim")
    )


def _written_out(resource: Resource, node: s.Attribute) -> e.Expr:
    match node.owner, node.path[0].text:
        case "pod", _:
            return resource.request
        case "other", _:
            return asked_of("other", resource.request)
        case "victim", _:
            return asked_of("victim", resource.request)
        case _, "allocatable":
            return resource.capacity
        case _, "requested":
            return _requested(resource)
        case _:
            floating = resource.type.held_as_float or e.is_floating(resource.capacity)
            return e.Arith(
                "-", resource.capacity, _requested(resource), resource.type, floating, resource.span
            )


def _requested(resource: Resource) -> e.SumPods:
    return e.SumPods(asked_of("other", resource.request), resource.type, resource.span)
