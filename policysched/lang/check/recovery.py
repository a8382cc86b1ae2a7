"""`recover MARK for DURATION` behind a filter's condition: a node that crossed the limit stays refused until then."""

from typing import Literal, cast

from policysched.lang.check.expressions import check_expression_as
from policysched.lang.check.scope import CONSTANT, Scope
from policysched.lang.ir import expr as e
from policysched.lang.ir.arithmetic import compare
from policysched.lang.ir.constant_folding import fold_constants
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t

OrderingOp = Literal["<", "<=", ">", ">="]
_MIRRORED: dict[str, OrderingOp] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NEGATED: dict[str, OrderingOp] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def check_recovery(scope: Scope, clause: s.RequireClause, found: e.Expr) -> e.Expr | None:
    """The condition with what holds nodes back; itself where the clause has no `recover`, None after a finding."""
    recover = clause.recover
    if recover is None:
        return found
    compared = _metric_limit(fold_constants(found))
    if compared is None:
        scope.report(
            "PS245",
            "`recover` needs a metric that is compared with a constant",
            clause.condition.span,
            label="not a limit of one metric",
            help="such as `require net_rx < 800Mbps recover 600Mbps for 2m`; split the rule in two",
        )
        return None
    metric, op, limit = compared
    mark = _constant(scope, recover.recover_at, metric.type)
    duration = _constant(scope, recover.duration, t.DURATION)
    if mark is None or duration is None:
        return None
    passes = _NEGATED[op] if clause.rejects else op
    if not compare(passes, mark, limit) and mark != limit:
        side = "below" if passes in ("<", "<=") else "above"
        scope.report(
            "PS245",
            f"`{recover.recover_at.span.text}` is on the wrong side of the limit",
            recover.recover_at.span,
            label=f"a node passes {side} it",
            help=f"the mark is {side} the limit, so that a value that swings about the limit stays refused",
        )
        return None
    if duration <= 0:
        scope.report(
            "PS208", "a node recovers for more than no time", recover.duration.span, help="such as `2m`"
        )
        return None
    held = e.NotRecovered(e.RecoveryCondition(metric.name, passes, limit, mark, int(duration)), recover.span)
    if clause.rejects:
        return e.Or((found, held), found.span)
    return e.And((found, e.Not(held, recover.span)), found.span)


def _metric_limit(condition: e.Expr) -> tuple[e.MetricRef, OrderingOp, int | float] | None:
    match condition:
        case e.Compare(op=op, left=e.MetricRef() as metric, right=e.Const(value=int() | float() as limit)):
            return None if op in ("==", "!=") else (metric, cast(OrderingOp, op), limit)
        case e.Compare(op=op, left=e.Const(value=int() | float() as limit), right=e.MetricRef() as metric):
            return None if op in ("==", "!=") else (metric, _MIRRORED[op], limit)
        case _:
            return None


def _constant(scope: Scope, node: s.Expression, wanted: t.Type) -> int | float | None:
    found = check_expression_as(scope, node, CONSTANT, wanted)
    if found is None:
        return None
    match fold_constants(found):
        case e.Const(value=int() | float() as value):
            return float(value) if wanted.is_float64 else value
        case _:
            scope.report(
                "PS221", "what a node recovers by is a constant", node.span, label="depends on something"
            )
            return None
