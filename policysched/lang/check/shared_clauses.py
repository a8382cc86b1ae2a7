"""What filters and scores share: `when`, `missing`, and parameters that only built-ins have."""

from policysched.builtins.registry import BUILTINS
from policysched.lang.check.expressions import check_condition
from policysched.lang.check.presence import (
    PresentReads,
    check_always_present,
    else_operand_text,
    implied_present,
    possibly_missing,
    report_possibly_missing,
)
from policysched.lang.check.scope import (
    WHEN_CONDITION,
    Scope,
    did_you_mean,
    join_alternatives,
)
from policysched.lang.ir import expr as e
from policysched.lang.ir.constant_folding import fold_constants, is_constant
from policysched.lang.syntax import tree as s
from policysched.text import Span


def check_when(scope: Scope, clause: s.WhenClause | None, present: PresentReads) -> e.Expr | None:
    """The folded condition; None if there is none or it is always true."""
    if clause is None:
        return None
    expr = check_condition(scope, clause.condition, WHEN_CONDITION)
    if expr is None or not check_always_present(scope, expr, present):
        return None
    folded = fold_constants(expr)
    uses_parameter = scope.names_parameter(clause.condition.span)
    if is_constant(folded, True):
        if not uses_parameter:
            scope.report("PS301", "this `when` is always true", clause.condition.span, help="remove it")
        return None
    if is_constant(folded, False) and not uses_parameter:
        scope.report("PS302", "this `when` is never true, so the rule never applies", clause.condition.span)
    return folded


def present_after_when(scope: Scope, clause: s.WhenClause | None, present: PresentReads) -> PresentReads:
    """The reads that the rule's `when` guards. Diagnostics are dropped: `check_when` reports them."""
    if clause is None:
        return present
    expr = check_condition(
        Scope(names=scope.names, broken_names=scope.broken_names), clause.condition, WHEN_CONDITION
    )
    return present if expr is None else present | implied_present(expr, True)


def report_parameters(scope: Scope, node: s.FilterDecl | s.ScoreDecl) -> None:
    if node.params:
        near = did_you_mean(node.name.text, BUILTINS)
        scope.report(
            "PS222",
            f"`{node.name.text}` has no parameters",
            node.params[0].span,
            help=near or "only built-ins have parameters",
        )


def find_missing_metrics(
    scope: Scope, expr: e.Expr, present: PresentReads, *, rejects: bool
) -> list[e.MetricRef | e.GangTraffic]:
    """Report unguarded optional reads, and return the metrics that can be missing.

    An absent label of the node never rejects, so `reject` needs no guard for it.
    """
    metrics: list[e.MetricRef | e.GangTraffic] = []
    for hole in possibly_missing(expr, present):
        if isinstance(hole, e.MetricRef | e.GangTraffic):
            metrics.append(hole)
        elif not (rejects and _reads_node(hole)):
            report_possibly_missing(scope, hole)
    return metrics


def _reads_node(hole: e.Expr) -> bool:
    match hole:
        case e.Attr(owner="node"):
            return True
        case e.InputRef(stage=stage):
            return bool(stage & e.Stage.NODE)
        case _:
            return False


def report_missing_clause_needed(scope: Scope, hole: e.MetricRef | e.GangTraffic, choices: str) -> None:
    scope.report(
        "PS214",
        f"no fallback while `{hole.name}` has no sample",
        hole.span,
        label="can be missing",
        help=f"add {choices} to the rule, or write `{else_operand_text(hole)} else VALUE`",
    )


def report_unused_missing_clause(scope: Scope, clause: s.MissingClause) -> None:
    scope.report("PS310", "`missing` has no effect: the rule reads no metric", clause.span, help="remove it")


def report_missing_clause(scope: Scope, node: s.FilterDecl | s.ScoreDecl, clause: str) -> None:
    name = node.name.text
    near = did_you_mean(name, BUILTINS)
    scope.report(
        "PS214",
        f"`{name}` is not a built-in and has no `{clause.split()[0]}`",
        node.name.span,
        label="incomplete rule",
        help=near or f"add `{clause}`",
    )


def report_unknown_choice(scope: Scope, word: str, span: Span, clause: str, choices: tuple[str, ...]) -> None:
    scope.report(
        "PS212",
        f"invalid value `{word}` of {clause}",
        span,
        label="unknown choice",
        help=did_you_mean(word, choices) or f"expected {join_alternatives(choices)}",
    )
