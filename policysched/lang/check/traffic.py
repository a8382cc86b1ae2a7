"""`traffic_to(gang)`: traffic between the pod and the members of its gang on a node.

`traffic_to(gang, METRIC)` names the metric if there are several between pods. With the key of a node label
as last argument (`traffic_to(gang, "topology.kubernetes.io/zone")`), it covers the whole topology domain.
"""

from policysched.lang.check.expression_checker import ExpressionChecker
from policysched.lang.check.scope import DeclaredName, declared_here, did_you_mean
from policysched.lang.ir import expr as e
from policysched.lang.ir.declarations import Metric, PairJoinSpec, is_node_metric
from policysched.lang.ir.transform import with_span
from policysched.lang.syntax import tree as s
from policysched.text import Span

_EXAMPLE = '`traffic_to(gang)`, `traffic_to(gang, METRIC)` or `traffic_to(gang, METRIC, "topology.kubernetes.io/zone")`'


def check_traffic_to(checker: ExpressionChecker, node: s.CallExpr) -> e.Expr | None:
    scope = checker.scope
    if not checker.context.traffic or checker.context.element_record is not None:
        return checker.report_not_readable(node.span, "traffic between pods")
    if not 1 <= len(node.args) <= 3:
        scope.report(
            "PS209",
            f"`traffic_to` takes 1 to 3 arguments, found {len(node.args)}",
            node.span,
            help=_EXAMPLE,
        )
        return None
    if not _check_gang_argument(checker, node.args[0]):
        return None
    rest = list(node.args[1:])
    metric: Metric | None = None
    if rest and isinstance(rest[0], s.NameExpr) and scope.use_constant(rest[0].name) is None:
        named = rest.pop(0)
        assert isinstance(named, s.NameExpr), named
        metric = _named_metric(checker, named)
    else:
        metric = _only_pod_pair_metric(checker, node.span)
    if len(rest) > 1:
        scope.report("PS209", "unexpected argument after the topology key", rest[1].span, help=_EXAMPLE)
        return None
    topology = _topology_label(checker, rest[0]) if rest else None
    if metric is None or (rest and topology is None):
        return None
    assert isinstance(metric.join, PairJoinSpec), f"{metric.name} is not between pods"
    gang = scope.gang
    assert gang is not None, "no `gang by` statement"
    if gang.key is None and gang.checked:
        return None

    def here(expr: e.Expr | None) -> e.Expr | None:
        return None if expr is None else with_span(expr, node.span)

    key = with_span(metric.join.pod_key, node.span)
    return e.GangTraffic(
        metric.name, key, here(gang.key), here(metric.assumed_load), topology, metric.type, node.span
    )


def _check_gang_argument(checker: ExpressionChecker, node: s.Expression) -> bool:
    scope = checker.scope
    if not isinstance(node, s.NameExpr) or node.name != "gang":
        word = node.name if isinstance(node, s.NameExpr) else node.span.text
        scope.report(
            "PS212",
            f"invalid argument `{word}` of `traffic_to`",
            node.span,
            label="expected `gang`",
            help="write `traffic_to(gang)`, for the placed members of the pod's gang",
        )
        return False
    if scope.gang is None:
        scope.report(
            "PS248",
            "the policy has no `gang by` statement",
            node.span,
            label="no gang declared",
            help='for example `gang by pod.labels["job-name"] { min = 1  mode = gate  timeout = 5m }`',
        )
    return scope.gang is not None


def _named_metric(checker: ExpressionChecker, node: s.NameExpr) -> Metric | None:
    declared = checker.scope.names.get(node.name)
    if declared is None:
        if node.name not in checker.scope.broken_names:
            checker.scope.report(
                "PS210",
                f"unknown name `{node.name}`",
                node.span,
                label="not declared",
                help=did_you_mean(node.name, _pod_pair_metrics(checker))
                or "expected a metric with `from` and `to`",
            )
        return None
    declared.used = True
    if declared.kind == "metric" and declared.definition is None:
        return None
    if declared.name not in _pod_pair_metrics(checker) or not isinstance(declared.definition, Metric):
        checker.scope.report(
            "PS247",
            f"`{node.name}` is not a metric between pods",
            node.span,
            help='such a metric has `from = ["namespace", "pod"]` and `to = ...` instead of `join`',
            related=(declared_here(declared.span),),
        )
        return None
    return declared.definition


def _only_pod_pair_metric(checker: ExpressionChecker, span: Span) -> Metric | None:
    metrics = _pod_pair_metrics(checker)
    if len(metrics) == 1:
        declared = next(iter(metrics.values()))
        declared.used = True
        assert isinstance(declared.definition, Metric), declared
        return declared.definition
    if metrics:
        checker.scope.report(
            "PS248",
            f"ambiguous metric: the policy has {len(metrics)} metrics between pods",
            span,
            label="which metric?",
            help=f"name it: `traffic_to(gang, {next(iter(metrics))})`",
        )
    elif not any(
        declared.kind == "metric" and declared.definition is None for declared in checker.scope.names.values()
    ):
        checker.scope.report(
            "PS248",
            "the policy has no metric between pods",
            span,
            label="no metric declared",
            help='declare one with `from = ["namespace", "pod"]` and `to = ["peer_namespace", "peer_pod"]`',
        )
    return None


def _pod_pair_metrics(checker: ExpressionChecker) -> dict[str, DeclaredName]:
    return {
        name: declared
        for name, declared in checker.scope.names.items()
        if isinstance(declared.definition, Metric) and not is_node_metric(declared.definition)
    }


def _topology_label(checker: ExpressionChecker, node: s.Expression) -> str | None:
    """The key of a node label, literal or by the name of a constant; None after a diagnostic."""
    match node:
        case s.StringLit(value=value) if value:
            return value
        case s.NameExpr(name=name):
            constant = checker.scope.use_constant(name)
            if constant is not None and isinstance(constant.value, str) and constant.value:
                return constant.value
        case _:
            pass
    checker.scope.report(
        "PS202",
        "expected the key of a node label",
        node.span,
        help='nodes with the same label value form one topology domain, for example `"topology.kubernetes.io/zone"`',
    )
    return None
