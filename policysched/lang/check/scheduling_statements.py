"""`queue by`, `gang by` and `preemption`: statements that may occur once in a policy."""

from typing import cast

from policysched.lang.check.block_params import BlockParams, check_block_params
from policysched.lang.check.dimensions import describe_type
from policysched.lang.check.expressions import check_condition, check_expression, check_expression_as
from policysched.lang.check.order_lints import lint_order, lint_victims
from policysched.lang.check.presence import (
    PresentReads,
    check_always_present,
    possibly_missing,
    report_possibly_missing,
)
from policysched.lang.check.scope import (
    GANG_TERM,
    QUEUE_KEY,
    VICTIM_CONDITION,
    VICTIM_ORDER,
    ExpressionContext,
    Scope,
    declared_here,
)
from policysched.lang.ir import expr as e
from policysched.lang.ir.constant_folding import fold_constants
from policysched.lang.ir.expr import Stage
from policysched.lang.ir.expr_analysis import stage_of, type_of, walk
from policysched.lang.ir.program import (
    DisruptionMode,
    GangMode,
    GangSpec,
    OnBindFailure,
    OnTimeout,
    OrderKey,
    PreemptionSpec,
    TopologyLevel,
)
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import INT, Type, TypeKind
from policysched.text import Span


def default_order_keys(span: Span) -> tuple[OrderKey, ...]:
    """kube-scheduler's order: by priority, then by the time the pod was queued."""
    priority = e.Attr("pod", ("priority",), INT, span)
    queued = e.Attr("pod", ("queued",), t.TIMESTAMP, span)
    return OrderKey(priority, True), OrderKey(queued, False)


def check_queue(scope: Scope, node: s.QueueDecl) -> tuple[OrderKey, ...] | None:
    keys = [_check_order_key(scope, key) for key in node.keys]
    checked_keys = tuple(key for key in keys if key is not None)
    if len(checked_keys) < len(keys):
        return None
    lint_order(scope, node, checked_keys)
    return checked_keys


def _check_order_key(scope: Scope, node: s.OrderKeyDecl) -> OrderKey | None:
    expr = _sortable(scope, node.value, QUEUE_KEY)
    if expr is None:
        return None
    if Stage.NAMESPACE_SHARES in stage_of(expr) and not _reads_only_namespace(scope, expr):
        scope.report(
            "PS215",
            "a queue key cannot combine a share with other values",
            expr.span,
            label="does not only depend on the namespace or the quota",
            help="split it into two keys: one for the share, one for the pod",
        )
        return None
    if isinstance(expr, e.Const):
        scope.report("PS301", "this queue key is the same for every pod", expr.span, label="constant")
    return OrderKey(fold_constants(expr), node.descending)


def _sortable(scope: Scope, node: s.Expression, context: ExpressionContext) -> e.Expr | None:
    expr = check_expression(scope, node, context)
    if expr is None:
        return None
    kind = type_of(expr)
    if kind.kind is TypeKind.LIST:
        scope.report(
            "PS202",
            f"{context.description} cannot be {describe_type(kind)}",
            expr.span,
            label=describe_type(kind),
        )
        return None
    for hole in possibly_missing(expr):
        if not isinstance(hole, e.Attr | e.InputRef):
            # An absent attribute sorts last; an undefined operation is an error.
            report_possibly_missing(scope, hole)
    return expr


def _reads_only_namespace(scope: Scope, key: e.Expr) -> bool:
    """Whether the key is the same for all pods of a namespace that count towards the same quotas, at any time."""
    inputs = scope.inputs()
    for part in walk(key):
        match part:
            case e.Attr(owner="pod", path=("quota_share", _)):
                pass
            case e.Attr(owner=owner) if owner != "namespace":
                return False
            case e.InputRef(name=name) if inputs[name].owner != "namespace":
                return False
            case e.Now() | e.WeeklyWindow():
                return False
            case _:
                pass
    return True


_GANG_PARAMS = ("min", "max", "timeout", "on_timeout", "mode", "topology", "on_bind_failure", "disruption")


def check_gang(scope: Scope, node: s.GangDecl) -> GangSpec | None:
    errors = scope.error_count()
    key = check_expression(scope, node.key, GANG_TERM, t.STRING)
    present: PresentReads = frozenset()
    if key is not None:
        kind = type_of(key)
        if kind.kind is not TypeKind.STRING:
            scope.report(
                "PS202",
                f"the key of a gang must be a string, found {describe_type(kind)}",
                key.span,
                label=describe_type(kind),
            )
        elif isinstance(key, e.Const) and not scope.names_parameter(node.key.span):
            scope.report(
                "PS301",
                "this key is the same for every pod: all pods of a namespace are one gang",
                key.span,
                label="constant",
                help='read a label of the pod, for example `pod.labels["job"]`',
            )
        elif isinstance(key, e.Attr | e.InputRef):
            present = _present_with(key)  # the parameters are only evaluated for pods of a gang
        else:
            check_always_present(scope, key)
    params = check_block_params(scope, "`gang`", node.span, node.params, _GANG_PARAMS)
    minimum_node = params.required("min", "2")
    minimum = None if minimum_node is None else _gang_term(scope, minimum_node, "min", INT, present)
    maximum = _optional_gang_term(scope, params, "max", INT, present)
    timeout = _optional_gang_term(scope, params, "timeout", t.DURATION, present)
    on_timeout = params.choice("on_timeout", [choice.value for choice in OnTimeout], "requeue")
    mode = params.choice("mode", [choice.value for choice in GangMode], "whole")
    topology, levels = _topology(scope, params, mode)
    on_bind_failure = params.choice("on_bind_failure", [choice.value for choice in OnBindFailure], "keep")
    if on_bind_failure == OnBindFailure.EVICT.value:
        _requires_whole(scope, params, "on_bind_failure", mode)
    disruption = _disruption(scope, params)
    if params.get("timeout") is None:
        scope.report(
            "PS404",
            "an incomplete gang waits forever",
            node.span,
            label="no `timeout`",
            help="add `timeout = 5m` and, for example, `on_timeout = requeue`",
        )
    if key is None or minimum is None or scope.error_count() > errors:
        return None
    return GangSpec(
        key=fold_constants(key),
        minimum=minimum,
        maximum=maximum,
        timeout=timeout,
        on_timeout=OnTimeout(cast(str, on_timeout)),
        mode=GangMode(cast(str, mode)),
        topology=topology,
        levels=levels,
        on_bind_failure=OnBindFailure(cast(str, on_bind_failure)),
        disruption=disruption,
        span=node.span,
    )


def _present_with(key: e.Attr | e.InputRef) -> PresentReads:
    """What a pod with this gang key has: every PodGroup has a name and a minimum."""
    group = {e.Attr("pod", ("group", name), kind.as_optional(), key.span) for name, kind in _OF_EVERY_GROUP}
    return frozenset({key, *(group if key in group else ())})


_OF_EVERY_GROUP = (("name", t.STRING), ("min", INT))


def _topology(
    scope: Scope, params: BlockParams, mode: str | None
) -> tuple[e.Expr | None, tuple[TopologyLevel, ...]]:
    """The label key (a text, or a string of the pod that may be missing), or the levels. Neither if there is none and
    after a diagnostic."""
    node = params.get("topology")
    if node is None:
        return None, ()
    _requires_whole(scope, params, "topology", mode)
    if isinstance(node, s.MapLit) and node.levels:
        return None, _topology_levels(scope, node)
    return _topology_key(scope, node), ()


def _topology_levels(scope: Scope, node: s.MapLit) -> tuple[TopologyLevel, ...]:
    levels: list[TopologyLevel] = []
    spans: dict[str, Span] = {}
    for key, word in node.entries:
        required = isinstance(word, s.NameExpr) and word.name == "required"
        if not key.value:
            scope.report("PS202", "a level of `topology` must be the key of a node label", key.span)
        elif key.value in spans:
            scope.report(
                "PS213",
                f"duplicate level `{key.value}`",
                key.span,
                label="listed again",
                related=(declared_here(spans[key.value]),),
            )
        elif required and levels and not levels[-1].required:
            scope.report(
                "PS266",
                f"the required level `{key.value}` follows a preferred one",
                word.span,
                label="cannot be required here",
                help="list the widest level first, and the required levels before the preferred ones",
            )
        else:
            levels.append(TopologyLevel(key.value, required))
        spans.setdefault(key.value, key.span)
    return tuple(levels)


def _topology_key(scope: Scope, node: s.Expression | s.MapLit) -> e.Expr | None:
    expr = _gang_string(scope, node)
    if expr is None or (isinstance(expr, e.Const) and not expr.value):
        if expr is not None or isinstance(node, s.MapLit):
            scope.report(
                "PS202",
                "`topology` must be the key of a node label",
                node.span,
                help='for example `"topology.kubernetes.io/zone"`, or `["topology.kubernetes.io/zone" required, "example.com/rack" preferred]`',
            )
        return None
    return expr


def _requires_whole(scope: Scope, params: BlockParams, name: str, mode: str | None) -> None:
    node = params.get(name)
    assert node is not None, f"`{name}` is not given"
    if mode == GangMode.GATE.value:
        scope.report(
            "PS235",
            f"`{name}` cannot be combined with `mode = gate`",
            node.span,
            label="requires `mode = whole`",
            help="remove `mode`; `whole` is the default",
        )


def _disruption(scope: Scope, params: BlockParams) -> e.Expr | None:
    """A choice, or a string of the pod; None if there is none and after a diagnostic."""
    node = params.get("disruption")
    choices = [mode.value for mode in DisruptionMode]
    if node is None:
        return None
    is_name = isinstance(node, s.NameExpr) and node.name in scope.names
    if isinstance(node, s.StringLit | s.MapLit) or (isinstance(node, s.NameExpr) and not is_name):
        chosen = params.choice("disruption", choices, "")
        return e.Const(chosen, t.STRING, node.span) if chosen else None
    return _gang_string(scope, node)


def _gang_string(scope: Scope, node: s.Expression | s.MapLit) -> e.Expr | None:
    expr = None if isinstance(node, s.MapLit) else check_expression_as(scope, node, GANG_TERM, t.STRING)
    return None if expr is None else fold_constants(expr)


def _optional_gang_term(
    scope: Scope, params: BlockParams, name: str, wanted: Type, present: PresentReads
) -> e.Expr | None:
    value = params.get(name)
    return None if value is None else _gang_term(scope, value, name, wanted, present)


def _gang_term(
    scope: Scope, node: s.Expression | s.MapLit, name: str, wanted: Type, present: PresentReads
) -> e.Expr | None:
    if isinstance(node, s.MapLit):
        scope.report("PS202", f"`{name}` must be {describe_type(wanted)}", node.span)
        return None
    expr = check_expression_as(scope, node, GANG_TERM, wanted)
    if expr is None or not check_always_present(scope, expr, present):
        return None
    folded = fold_constants(expr)
    if isinstance(folded, e.Const) and cast(int, folded.value) < 1:
        scope.report("PS208", f"`{name}` must be greater than zero", expr.span)
        return None
    return folded


def check_preemption(scope: Scope, node: s.PreemptionDecl) -> PreemptionSpec | None:
    if node.params is None:
        return PreemptionSpec("never", None)
    params = check_block_params(scope, "`preemption`", node.span, node.params, ("victims", "order"))
    order = _victim_order(scope, params.get("order"))
    victims = params.required("victims", "own")
    match victims:
        case None:
            return None
        case s.NameExpr(name="own"):
            return PreemptionSpec("own", None, order)
        case s.NameExpr(name="any"):
            return PreemptionSpec("any", None, order)
        case s.MapLit():
            scope.report("PS202", "`victims` must be `own`, `any` or a condition", victims.span)
            return None
    expr = check_condition(scope, victims, VICTIM_CONDITION)
    if expr is None or not check_always_present(scope, expr):
        return None
    lint_victims(scope, expr)
    return PreemptionSpec("where", fold_constants(expr), order)


def _victim_order(scope: Scope, node: s.Expression | s.MapLit | None) -> tuple[OrderKey, ...]:
    match node:
        case None:
            return ()
        case s.MapLit(order=()):
            scope.report(
                "PS202",
                "`order` must be a value of the victim, or a list of them",
                node.span,
                help="for example `order = [victim.priority, victim.created desc]`",
            )
            return ()
        case s.MapLit(order=written):
            pass
        case s.ListLit(items=items):
            written = tuple(s.OrderKeyDecl(item, False, item.span) for item in items)
        case _:
            written = (s.OrderKeyDecl(node, False, node.span),)
    keys: list[OrderKey] = []
    for key in written:
        expr = _sortable(scope, key.value, VICTIM_ORDER)
        if expr is None:
            continue
        if not any(isinstance(part, e.Attr | e.InputRef) and part.owner == "victim" for part in walk(expr)):
            scope.report("PS301", "this value is the same for every victim", expr.span, label="constant")
        keys.append(OrderKey(fold_constants(expr), key.descending))
    return tuple(keys)
