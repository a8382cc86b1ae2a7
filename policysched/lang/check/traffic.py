"""`check_traffic_to(gang)`: what flows between the pod and the members of its gang on a node, and which metric says so.

`check_traffic_to(gang, METRIC)` names the metric where there are several between pods, and the key of a label of nodes at the end
(`check_traffic_to(gang, "topology.kubernetes.io/zone")`) asks of the whole domain in place of the node.
"""

from policysched.lang.check.expression_checker import ExpressionChecker
from policysched.lang.check.scope import DeclaredName, declared_here, did_you_mean
from policysched.lang.ir import expr as e
from policysched.lang.ir.declarations import Metric, PairJoinSpec, is_node_metric
from policysched.lang.ir.transform import with_span
from policysched.lang.syntax import tree as s
from policysched.text import Span

_EXAMPLE = '`check_traffic_to(gang)`, `check_traffic_to(gang, METRIC)` or `traffic_to(gang, METRIC, "topology.kubernetes.io/zone")`'


def check_traffic_to(reader: ExpressionChecker, node: s.CallExpr) -> e.Expr | None:
    scope = reader.scope
    if not reader.context.traffic or reader.context.element_record is not None:
        return reader.report_not_readable(node.span, "what flows between pods")
    if not 1 <= len(node.args) <= 3:
        scope.report(
            "PS209",
            f"`check_traffic_to` takes 1 to 3 arguments, and here are {len(node.args)}",
            node.span,
            help=_EXAMPLE,
        )
        return None
    if not _check_gang_argument(reader, node.args[0]):
        return None
    rest = list(node.args[1:])
    metric: Metric | None = None
    if rest and isinstance(rest[0], s.NameExpr) and scope.use_constant(rest[0].name) is None:
        named = rest.pop(0)
        assert isinstance(named, s.NameExpr), named
        metric = _named_metric(reader, named)
    else:
        metric = _only_pod_pair_metric(reader, node.span)
    if len(rest) > 1:
        scope.report("PS209", "nothing comes behind the label", rest[1].span, help=_EXAMPLE)
        return None
    topology = _topology_label(reader, rest[0]) if rest else None
    if metric is None or (rest and topology is None):
        return None
    assert isinstance(metric.join, PairJoinSpec), f"{metric.name} is not between pods"
    gang = scope.gang
    assert gang is not None, "nobody says what a gang is"
    if gang.key is None and gang.checked:
        return None

    def here(expr: e.Expr | None) -> e.Expr | None:
        return None if expr is None else with_span(expr, node.span)

    key = with_span(metric.join.pod_key, node.span)
    return e.GangTraffic(
        metric.name, key, here(gang.key), here(metric.assumed_load), topology, metric.type, node.span
    )


def _check_gang_argument(reader: ExpressionChecker, node: s.Expression) -> bool:
    scope = reader.scope
    if not isinstance(node, s.NameExpr) or node.name != "gang":
        word = node.name if isinstance(node, s.NameExpr) else node.span.text
        scope.report(
            "PS212",
            f"`{word}` is nobody that `check_traffic_to` knows",
            node.span,
            label="unknown word",
            help="it is `gang`: the members of the pod's gang that are placed",
        )
        return False
    if scope.gang is None:
        scope.report(
            "PS248",
            "no statement says what a gang is",
            node.span,
            label="which gang?",
            help='add one, such as `gang by pod.labels["job-name"] { min = 1  mode = gate  timeout = 5m }`',
        )
    return scope.gang is not None


def _named_metric(reader: ExpressionChecker, node: s.NameExpr) -> Metric | None:
    declared = reader.scope.names.get(node.name)
    if declared is None:
        if node.name not in reader.scope.broken_names:
            reader.scope.report(
                "PS210",
                f"unknown name `{node.name}`",
                node.span,
                label="not declared",
                help=did_you_mean(node.name, _pod_pair_metrics(reader))
                or "a metric with `from` and `to` stands here",
            )
        return None
    declared.used = True
    if declared.kind == "metric" and declared.definition is None:
        return None
    if declared.name not in _pod_pair_metrics(reader) or not isinstance(declared.definition, Metric):
        reader.scope.report(
            "PS247",
            f"`{node.name}` is no metric between two pods",
            node.span,
            help='one has `from = ["namespace", "pod"]` and `to = ...` in place of `join`',
            related=(declared_here(declared.span),),
        )
        return None
    return declared.definition


def _only_pod_pair_metric(reader: ExpressionChecker, span: Span) -> Metric | None:
    found = _pod_pair_metrics(reader)
    if len(found) == 1:
        declared = next(iter(found.values()))
        declared.used = True
        assert isinstance(declared.definition, Metric), declared
        return declared.definition
    if found:
        reader.scope.report(
            "PS248",
            f"there are {len(found)} metrics between pods, and this names none of them",
            span,
            label="which metric?",
            help=f"name it: `check_traffic_to(gang, {next(iter(found))})`",
        )
    elif not any(one.kind == "metric" and one.definition is None for one in reader.scope.names.values()):
        reader.scope.report(
            "PS248",
            "no metric is between pods",
            span,
            label="which metric?",
            help='declare one with `from = ["namespace", "pod"]` and `to = ["peer_namespace", "peer_pod"]`',
        )
    return None


def _pod_pair_metrics(reader: ExpressionChecker) -> dict[str, DeclaredName]:
    return {
        name: one
        for name, one in reader.scope.names.items()
        if isinstance(one.definition, Metric) and not is_node_metric(one.definition)
    }


def _topology_label(reader: ExpressionChecker, node: s.Expression) -> str | None:
    """The key of a label of nodes, written or by the name of a constant; None after a finding."""
    match node:
        case s.StringLit(value=value) if value:
            return value
        case s.NameExpr(name=name):
            found = reader.scope.use_constant(name)
            if found is not None and isinstance(found.value, str) and found.value:
                return found.value
        case _:
            pass
    reader.scope.report(
        "PS202",
        "this is no key of a label",
        node.span,
        help='nodes that agree on a label are one domain: `"topology.kubernetes.io/zone"`',
    )
    return None
