"""`recover VALUE for DURATION`: a node that exceeded the limit stays rejected until it has recovered."""

from typing import Literal, cast

from policysched.lang.check.expressions import check_expression_as
from policysched.lang.check.scope import CONSTANT, Scope
from policysched.lang.ir import expr as e
from policysched.lang.ir.arithmetic import compare
from policysched.lang.ir.constant_folding import fold_constants
from policysched.lang.ir.recovery_condition import RecoveryCondition
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t

OrderingOp = Literal["<", "<=", ">", ">="]
_MIRRORED: dict[str, OrderingOp] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NEGATED: dict[str, OrderingOp] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def check_recovery(scope: Scope, clause: s.RequireClause, expr: e.Expr) -> e.Expr | None:
    """The condition, extended by the recovery condition if there is a `recover`; None after a diagnostic."""
    recover = clause.recover
    if recover is None:
        return expr
    compared = _metric_limit(fold_constants(expr))
    if compared is None:
        scope.report(
            "PS245",
            "`recover` requires a condition that compares one metric with a constant",
            clause.condition.span,
            label="not a metric limit",
            help="for example `require net_rx < 800Mbps recover 600Mbps for 2m`; move other conditions to another rule",
        )
        return None
    metric, op, limit = compared
    recover_at = _constant(scope, recover.recover_at, metric.type)
    duration = _constant(scope, recover.duration, t.DURATION)
    if recover_at is None or duration is None:
        return None
    passes = _NEGATED[op] if clause.rejects else op
    if not compare(passes, recover_at, limit) and recover_at != limit:
        side = "below" if passes in ("<", "<=") else "above"
        scope.report(
            "PS245",
            f"the recovery value `{recover.recover_at.span.text}` is on the wrong side of the limit",
            recover.recover_at.span,
            label=f"must be {side} the limit",
            help=f"a value {side} the limit prevents flapping around the limit",
        )
        return None
    if duration <= 0:
        scope.report(
            "PS208",
            "the recovery duration must be greater than zero",
            recover.duration.span,
            help="for example `2m`",
        )
        return None
    not_recovered = e.NotRecovered(
        RecoveryCondition(metric.name, passes, limit, recover_at, int(duration)), recover.span
    )
    if clause.rejects:
        return e.Or((expr, not_recovered), expr.span)
    return e.And((expr, e.Not(not_recovered, recover.span)), expr.span)


def _metric_limit(condition: e.Expr) -> tuple[e.MetricRef, OrderingOp, int | float] | None:
    match condition:
        case e.Compare(op=op, left=e.MetricRef() as metric, right=e.Const(value=int() | float() as limit)):
            return None if op in ("==", "!=") else (metric, cast(OrderingOp, op), limit)
        case e.Compare(op=op, left=e.Const(value=int() | float() as limit), right=e.MetricRef() as metric):
            return None if op in ("==", "!=") else (metric, _MIRRORED[op], limit)
        case _:
            return None


def _constant(scope: Scope, node: s.Expression, wanted: t.Type) -> int | float | None:
    expr = check_expression_as(scope, node, CONSTANT, wanted)
    if expr is None:
        return None
    match fold_constants(expr):
        case e.Const(value=int() | float() as value):
            return float(value) if wanted.is_float64 else value
        case _:
            scope.report(
                "PS221",
                "the recovery value and duration must be constants",
                node.span,
                label="not a constant",
            )
            return None
