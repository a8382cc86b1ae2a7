"""`canary NAME 10% by E when E guard pending < 2% for 1m else rollback { ... }`: a layer for a share of the owners."""

from hashlib import sha256

from policysched.lang.check.expressions import check_condition, check_expression_as
from policysched.lang.check.layers import LayerChecker
from policysched.lang.check.presence import PresentReads, check_always_present, implied_present
from policysched.lang.check.scope import CANARY_KEY, CONSTANT, Scope
from policysched.lang.format.printer import print_tree
from policysched.lang.ir import expr as e
from policysched.lang.ir.constant_folding import fold_constants
from policysched.lang.ir.layers import Layer
from policysched.lang.ir.program import CanarySpec
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.text import Span

_BUCKETS = 10_000
"""A share is rounded to a hundredth of a percent."""
_SECOND_NS = 10**9
_MEASURES = ("pending",)
_EXAMPLE = "for example `canary denser 10% by pod.owner.name guard pending < 2% for 1m else rollback { ... }`"


def check_canary(
    scope: Scope, layers: LayerChecker, node: s.CanaryDecl, index: int
) -> tuple[Layer, CanarySpec] | None:
    """The canary and its layer, which will have this index; None after a diagnostic."""
    errors = scope.error_count()
    share = _constant(scope, node.share, t.RATIO)
    if share is not None and not 0 < share <= 1:
        _report(scope, node.share.span, "the share of a canary is more than 0% and at most 100%")
    key = check_expression_as(scope, node.key, CANARY_KEY, t.STRING)
    when = None if node.when is None else check_condition(scope, node.when.condition, CANARY_KEY)
    present: PresentReads = frozenset()
    if when is not None:
        check_always_present(scope, when)
        present = implied_present(when, True)
    guard = node.guard
    if guard.measure.text not in _MEASURES:
        _report(
            scope,
            guard.measure.span,
            f"a guard cannot measure `{guard.measure.text}`",
            "the measure is `pending`: the share of the canary's pods that were tried and have no node",
        )
    limit = _constant(scope, guard.limit, t.RATIO)
    if limit is not None and not 0 < limit <= 1:
        _report(scope, guard.limit.span, "the limit of a guard is more than 0% and at most 100%")
    duration_ns = _constant(scope, guard.duration, t.DURATION)
    if duration_ns is not None and duration_ns < _SECOND_NS:
        _report(scope, guard.duration.span, "the duration of a guard is at least `1s`")
    changes = [change for statement in node.body for change in layers.statement_changes(statement, present)]
    if key is None or share is None or limit is None or duration_ns is None or scope.error_count() > errors:
        return None
    layer = Layer(node.name.text, _condition(node, key, when, share), tuple(changes), node.name.span)
    spec = CanarySpec(node.name.text, index, float(limit), int(duration_ns), _sha256(node), node.span)
    return layer, spec


def _condition(node: s.CanaryDecl, key: e.Expr, when: e.Expr | None, share: float) -> e.Expr:
    """Missing, so not true, for a pod without the key; one whose key is empty has no owner either."""
    span = node.key.span
    has_owner = e.Compare("!=", key, e.Const("", t.STRING, span), span)
    bucket = e.Bucket(key, _BUCKETS, span, salt=f"canary {node.name.text}: ")
    in_share = e.Compare("<", bucket, e.Const(round(share * _BUCKETS), t.INT, span), span)
    items = (has_owner, in_share) if when is None else (when, has_owner, in_share)
    return fold_constants(e.And(items, span))


def _sha256(node: s.CanaryDecl) -> str:
    return sha256(
        print_tree(s.SyntaxTree((node,), (), node.span), keep_empty_lines=False).encode()
    ).hexdigest()


def _constant(scope: Scope, node: s.Expression, wanted: t.Type) -> int | float | None:
    expr = check_expression_as(scope, node, CONSTANT, wanted)
    match None if expr is None else fold_constants(expr):
        case None:
            return None
        case e.Const(value=int() | float() as value):
            return value
        case _:
            scope.report(
                "PS221",
                "a canary's share, limit and duration are constants",
                node.span,
                label="not a constant",
            )
            return None


def _report(scope: Scope, span: Span, message: str, advice: str = "") -> None:
    scope.report("PS267", message, span, help=advice or _EXAMPLE)
