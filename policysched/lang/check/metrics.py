"""`metric NAME: TYPE { ... }`, per node or (with `from` and `to`) per pair of pods, and `outage { ... }`."""

from typing import Literal, cast

from policysched.lang.check.block_params import BlockParams, check_block_params
from policysched.lang.check.constants import check_constant
from policysched.lang.check.expressions import check_expression_as
from policysched.lang.check.literals import check_unit
from policysched.lang.check.presence import check_always_present
from policysched.lang.check.query_lints import lint_query
from policysched.lang.check.scope import ASSUMED_METRIC, SERIES_POD_KEY, Scope
from policysched.lang.ir.constant_folding import fold_constants
from policysched.lang.ir.declarations import Metric, OutageSpec, PairJoinSpec
from policysched.lang.ir.expr import Attr, Const, Expr
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import DURATION, RATIO, STRING, Type

_EVERY_MIN_NS = 10**9
_PARAMS = ("query", "source", "unit", "join", "from", "to", "key", "every", "stale", "sampled_at", "assume")
_POD_PAIR_PARAMS = ("from", "to", "key")


def check_metric(scope: Scope, node: s.MetricDecl, type_: Type | None) -> Metric | None:
    errors = scope.error_count()
    params = check_block_params(scope, f"the metric `{node.name.text}`", node.name.span, node.params, _PARAMS)
    query = _text(scope, params.required("query", '"..."'), "query")
    source = _source(scope, params.get("source"))
    sampled_at = _text(scope, params.get("sampled_at"), "sampled_at")
    unit = _text(scope, params.required("unit", '"B/s"'), "unit")
    unit_node = params.get("unit")
    if type_ is not None and unit is not None and unit_node is not None:
        check_unit(scope, unit, unit_node.span, type_)
    for written in (params.get("query"), params.get("sampled_at")):
        if isinstance(written, s.StringLit) and source in (None, "prometheus"):
            lint_query(scope, written, unit)
    is_pod_pair = any(params.get(name) is not None for name in _POD_PAIR_PARAMS)
    join = _pod_pair_join(scope, params) if is_pod_pair else _node_join(scope, params)
    every = _every(scope, params)
    stale = _period(scope, params, "stale", "90s")
    assume = _assume(scope, params, type_)
    if every is not None and stale is not None and stale < 2 * every:
        written = params.get("stale")
        scope.report(
            "PS403",
            f"`{node.name.text}` is stale after one lost sample",
            node.name.span if written is None else written.span,
            label="less than twice `every`",
            help="set `stale` to at least twice `every`, better four times",
        )
    if type_ is None or scope.error_count() > errors or None in (query, unit, join, every, stale):
        return None
    return Metric(
        name=node.name.text,
        type=type_,
        source=source,
        query=cast(str, query),
        unit=cast(str, unit),
        join=cast("str | tuple[str, str] | PairJoinSpec", join),
        poll_interval_ns=cast(int, every),
        stale_after_ns=cast(int, stale),
        sampled_at=sampled_at,
        assumed_load=assume,
        span=node.name.span,
    )


def _source(scope: Scope, node: s.Expression | s.MapLit | None) -> str | None:
    """A bare name, or a string if the name contains a dash."""
    return node.name if isinstance(node, s.NameExpr) else _text(scope, node, "source")


def _text(scope: Scope, node: s.Expression | s.MapLit | None, name: str) -> str | None:
    if node is None:
        return None
    if isinstance(node, s.StringLit) and node.value:
        return node.value
    scope.report("PS202", f"`{name}` must be a non-empty string", node.span)
    return None


def _node_join(scope: Scope, params: BlockParams) -> str | tuple[str, str] | None:
    value = params.required("join", "instance")
    match value:
        case None:
            return None
        case s.NameExpr(name="node" | "instance" as name):
            return name
        case s.MapLit(entries=((s.StringLit(value=series), s.StringLit(value=node)),)):
            return series, node
    written = value.span.text
    scope.report(
        "PS212",
        f"invalid `join`: `{written}`",
        value.span,
        label="cannot join samples to nodes",
        help=f"write `{written.strip(chr(34))}` without quotes"
        if written in ('"node"', '"instance"')
        else 'expected `node`, `instance`, or `{"series label" = "node label"}`',
    )
    return None


def _pod_pair_join(scope: Scope, params: BlockParams) -> PairJoinSpec | None:
    for name in ("join", "sampled_at"):
        misplaced = params.get(name)
        if misplaced is not None:
            scope.report(
                "PS249",
                f"`{name}` is not allowed in a metric between pods",
                misplaced.span,
                label="conflicts with `from` and `to`",
                help="remove it; `from` and `to` are the joins"
                if name == "join"
                else "remove it; samples have the age of the poll that returned them",
            )
    sender, receiver = (_pod_series_labels(scope, params, name) for name in ("from", "to"))
    key = _pod_key(scope, params)
    if sender is None or receiver is None or key is None:
        return None
    return PairJoinSpec(sender, receiver, key)


def _pod_series_labels(scope: Scope, params: BlockParams, name: str) -> tuple[str, ...] | None:
    """The series labels of namespace and pod, or the one label that has both."""
    value = params.required(name, '["namespace", "pod"]')
    match value:
        case None:
            return None
        case s.ListLit(items=(s.StringLit(value=namespace), s.StringLit(value=pod))) if namespace and pod:
            return namespace, pod
        case s.ListLit(items=(s.StringLit(value=label),)) if label:
            return (label,)
    scope.report(
        "PS212",
        f"invalid `{name}`: `{value.span.text}`",
        value.span,
        label="cannot join samples to pods",
        help='expected the labels of namespace and pod, `["namespace", "pod"]`, or one label with `namespace/pod`',
    )
    return None


def _pod_key(scope: Scope, params: BlockParams) -> Expr | None:
    value = params.get("key")
    if value is None:
        return Attr("pod", ("name",), STRING, params.span)
    if isinstance(value, s.MapLit):
        scope.report("PS202", "`key` must be a string", value.span)
        return None
    expr = check_expression_as(scope, value, SERIES_POD_KEY, STRING)
    return None if expr is None or not check_always_present(scope, expr) else fold_constants(expr)


def _period(scope: Scope, params: BlockParams, name: str, example: str) -> int | None:
    value = params.required(name, example)
    return None if value is None else check_positive_duration(scope, value, name)


def _every(scope: Scope, params: BlockParams) -> int | None:
    """The poll interval, with a lower bound so that no policy can overload the metrics server."""
    every = _period(scope, params, "every", "15s")
    written = params.get("every")
    if every is None or every >= _EVERY_MIN_NS or written is None:
        return every
    scope.report("PS208", "`every` must be at least 1s", written.span, help="for example `every = 15s`")
    return None


def check_positive_duration(scope: Scope, node: s.Expression | s.MapLit, name: str) -> int | None:
    if isinstance(node, s.MapLit):
        scope.report("PS202", f"`{name}` must be a duration", node.span)
        return None
    expr = check_constant(scope, node, DURATION)
    if expr is None:
        return None
    value = cast(int, expr.value)
    if value <= 0:
        scope.report("PS208", f"`{name}` must be greater than zero", node.span)
        return None
    return value


def _assume(scope: Scope, params: BlockParams, type_: Type | None) -> Expr | None:
    value = params.get("assume")
    if value is None or type_ is None:
        return None
    if isinstance(value, s.MapLit):
        scope.report("PS202", "`assume` must be a value of the metric's type", value.span)
        return None
    expr = check_expression_as(scope, value, ASSUMED_METRIC, type_)
    if expr is None or not check_always_present(scope, expr):
        return None
    return fold_constants(expr)


def check_outage(scope: Scope, node: s.OutageDecl) -> OutageSpec | None:
    params = check_block_params(scope, "`outage`", node.span, node.params, ("above", "then"))
    then = params.choice("then", ("disable", "wait"), "disable")
    above = params.required("above", "50%")
    if above is None:
        return None
    if isinstance(above, s.MapLit):
        scope.report("PS202", "`above` must be a ratio, for example `50%`", above.span)
        return None
    expr: Const | None = check_constant(scope, above, RATIO)
    if expr is None:
        return None
    share = float(cast(float, expr.value))
    if not 0 <= share <= 1:
        scope.report("PS208", "`above` must be between 0% and 100%", above.span)
        return None
    return None if then is None else OutageSpec(share, cast(Literal["disable", "wait"], then))
