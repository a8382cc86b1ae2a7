"""Totals over pods: `count(placed pods where ...)`, `sum(other.requests.cpu over pods in "example.com/rack")`.

In the condition and the value, `other` is the counted pod.
"""

from dataclasses import replace

from policysched.lang.check.dimensions import describe_type
from policysched.lang.check.expression_checker import ExpressionChecker
from policysched.lang.check.scope import COUNTED_IN_CLUSTER, COUNTED_ON_NODE, COUNTED_ON_NODES
from policysched.lang.check.team_reads import refuses_pod_total
from policysched.lang.ir import expr as e
from policysched.lang.ir.clock import clock_reads_outside_comparisons
from policysched.lang.ir.expr_analysis import is_floating, type_of
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import TypeKind

_SCOPES: dict[str | None, e.PodScope] = {None: "active", "all": "all", "placed": "placed", "in": "placed"}


def check_pod_total(checker: ExpressionChecker, node: s.PodTotalExpr) -> e.Expr | None:
    if not _check_function(checker, node) or refuses_pod_total(checker.scope, node):
        return None
    if node.pods.word == "node":
        return _check_count_on_node(checker, node)
    context, word = checker.context, node.pods.word
    if not context.cluster_pods or (word == "in" and not context.node_pods):
        what = "the pods of a topology domain" if word == "in" else "the pods of the cluster"
        return checker.report_not_readable(node.span, what)
    if context.after_placement and _SCOPES[word] == "placed":
        checker.scope.report(
            "PS220",
            f"`after placing` cannot read `{node.span.text}`",
            node.span,
            label="placing the pod also changes it on other nodes",
            help="count `pods on node`, or leave out `after placing`",
        )
        return None
    topology_key = None
    if node.pods.key is not None:
        topology_key = _label_key(checker, node.pods.key)
        if topology_key is None:
            return None
    inside = checker.in_context(COUNTED_ON_NODES if word in ("placed", "in") else COUNTED_IN_CLUSTER)
    condition = None if node.where is None else inside.check_condition(node.where, "where")
    added = checker.in_context(replace(inside.context, description="the value of a `sum`", time=False))
    value = None if node.value is None else added.check(node.value, None)
    if condition is not None and _reports_clock(checker, condition):
        return None
    if (node.where is None) != (condition is None) or (node.value is None) != (value is None):
        return None
    if value is None:
        return e.PodTotal(_SCOPES[word], topology_key, None, condition, t.INT, False, node.span)
    value = inside.require_numeric(value, "`sum`")
    if value is None:
        return None
    type_ = type_of(value).as_required()
    if type_.kind is TypeKind.TIMESTAMP:
        checker.scope.report(
            "PS204", "points in time cannot be added", value.span, label=describe_type(type_)
        )
        return None
    return e.PodTotal(_SCOPES[word], topology_key, value, condition, type_, is_floating(value), node.span)


def _reports_clock(checker: ExpressionChecker, condition: e.Expr) -> bool:
    """A pod comes of age once, so that a total is kept. What changes all the time would be counted again for each decision."""
    part = next(clock_reads_outside_comparisons(condition), None)
    if part is None:
        return False
    checker.scope.report(
        "PS220",
        f"a `count` condition can only compare `{part.span.text}`",
        part.span,
        label="changes all the time",
        help="write it beside the total: `window(...) and count(...) < 3`"
        if isinstance(part, e.WeeklyWindow)
        else "compare it with a duration or a time: `other.age < 10m`",
    )
    return True


def _check_function(checker: ExpressionChecker, node: s.PodTotalExpr) -> bool:
    wanted = "count" if node.value is None else "sum"
    if node.function.text == wanted:
        return True
    checker.scope.report(
        "PS210",
        f"`{node.function.text}` is not a total over pods",
        node.function.span,
        label="expected `sum`",
        help="the totals over pods are `count(pods where ...)` and `sum(VALUE over pods where ...)`",
    )
    return False


def _check_count_on_node(checker: ExpressionChecker, node: s.PodTotalExpr) -> e.Expr | None:
    if not checker.context.node_pods:
        return checker.report_not_readable(node.span, "the pods of a node")
    if node.where is None:
        return e.CountPodsOnNode(None, node.span)
    where = checker.in_context(COUNTED_ON_NODE).check_condition(node.where, "where")
    return None if where is None else e.CountPodsOnNode(where, node.span)


def _label_key(checker: ExpressionChecker, node: s.StringLit | s.NameExpr) -> str | None:
    if isinstance(node, s.StringLit):
        return node.value
    constant = checker.scope.use_constant(node.name)
    if constant is not None and isinstance(constant.value, str):
        return constant.value
    if node.name not in checker.scope.broken_names:
        checker.scope.report(
            "PS202",
            f"expected the key of a node label, found `{node.name}`",
            node.span,
            label="expected a constant string",
            help='for example `pods in "topology.kubernetes.io/zone"`',
        )
    return None
