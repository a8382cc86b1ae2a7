"""`resource NAME { capacity = E, request = E }`: the declaration; see `resource_amounts` for reads."""

from policysched.lang.check.block_params import BlockParams, check_block_params
from policysched.lang.check.dimensions import describe_type
from policysched.lang.check.expressions import check_expression, check_expression_as
from policysched.lang.check.presence import check_always_present
from policysched.lang.check.scope import CAPACITY, REQUEST, DeclaredResource, Scope, declared_here
from policysched.lang.check.team_reads import warn_of_settable_key
from policysched.lang.ir import expr as e
from policysched.lang.ir.constant_folding import fold_constants
from policysched.lang.ir.declarations import ResourceSpec
from policysched.lang.ir.expr_analysis import type_of, walk
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import Type, TypeKind

_RESOURCE_KINDS = frozenset({TypeKind.INT, TypeKind.CPU, TypeKind.BYTES, TypeKind.BANDWIDTH})
_KUBERNETES_RESOURCES = frozenset({"cpu", "memory", "pods", "ephemeral-storage"})


def declare_resource(scope: Scope, node: s.ResourceDecl) -> None:
    name = node.name.text
    declared = scope.resources.get(name)
    if declared is not None:
        scope.report(
            "PS213",
            f"duplicate resource `{name}`",
            node.name.span,
            label="declared again",
            related=(declared_here(declared.span),),
        )
        return
    if name in _KUBERNETES_RESOURCES:
        scope.report(
            "PS234",
            f"`{name}` is a Kubernetes resource",
            node.name.span,
            label="reserved name",
            help="choose another name",
        )
    scope.resources[name] = DeclaredResource(node.name.span, _resource(scope, node))


def _resource(scope: Scope, node: s.ResourceDecl) -> ResourceSpec | None:
    errors = scope.error_count()
    owner = f"the resource `{node.name.text}`"
    params = check_block_params(scope, owner, node.name.span, node.params, ("capacity", "request"))
    capacity = _capacity(scope, params, owner)
    request = _request(scope, params, owner, None if capacity is None else type_of(capacity))
    if capacity is None or request is None or scope.error_count() > errors:
        return None
    kind = type_of(capacity).as_required()
    return ResourceSpec(
        node.name.text, kind, fold_constants(capacity), fold_constants(request), node.name.span
    )


def _capacity(scope: Scope, params: BlockParams, owner: str) -> e.Expr | None:
    node = params.required("capacity", "10Gbps")
    if node is None:
        return None
    if isinstance(node, s.MapLit):
        scope.report("PS202", f"the capacity of {owner} must be an amount", node.span)
        return None
    expr = check_expression(scope, node, CAPACITY)
    if expr is None:
        return None
    kind = type_of(expr)
    if kind.kind not in _RESOURCE_KINDS:
        scope.report(
            "PS202",
            f"the capacity of {owner} must be of type int, cpu, bytes or bandwidth, found {describe_type(kind)}",
            expr.span,
            label=describe_type(kind),
        )
        return None
    return expr


def _request(scope: Scope, params: BlockParams, owner: str, kind: Type | None) -> e.Expr | None:
    node = params.required("request", "0")
    if node is None or kind is None:
        return None
    if isinstance(node, s.MapLit):
        scope.report("PS202", f"the request of {owner} must be an amount", node.span)
        return None
    expr = check_expression_as(scope, node, REQUEST, kind.as_required())
    if expr is None or not check_always_present(scope, expr):
        return None
    inputs = scope.inputs()
    for part in walk(expr):
        match part:
            case e.Attr(owner="namespace"):
                pass
            case e.InputRef(name=name) if inputs[name].owner == "namespace":
                pass
            case e.InputRef(name=name) if name in scope.settable_names:
                warn_of_settable_key(scope, part.span)
                continue
            case _:
                continue
        scope.report(
            "PS220",
            "the request of a resource cannot depend on the namespace",
            part.span,
            label="can change while the pod is running",
        )
        return None
    return expr
