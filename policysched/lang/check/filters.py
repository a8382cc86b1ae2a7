"""Filters: `require` or `reject`, `missing`, `scaleup` and the rejection message."""

from dataclasses import replace
from typing import Literal, cast

from policysched.lang.check.expressions import check_condition, check_expression
from policysched.lang.check.presence import PresentReads, possibly_missing
from policysched.lang.check.recovery import check_recovery
from policysched.lang.check.rule_clauses import RuleClauses
from policysched.lang.check.scope import (
    FILTER_CONDITION,
    Scope,
)
from policysched.lang.check.shared_clauses import (
    check_when,
    find_missing_metrics,
    present_after_when,
    report_missing_clause,
    report_missing_clause_needed,
    report_parameters,
    report_unknown_choice,
    report_unused_missing_clause,
)
from policysched.lang.check.templates import check_template
from policysched.lang.ir import expr as e
from policysched.lang.ir.constant_folding import fold_constants, is_constant
from policysched.lang.ir.expr_analysis import type_of, walk
from policysched.lang.ir.rules import FilterRule
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import STRING
from policysched.text import Label


def check_filter(
    scope: Scope, node: s.FilterDecl, clauses: RuleClauses, present: PresentReads
) -> FilterRule | None:
    report_parameters(scope, node)
    when = check_when(scope, clauses.when, present)
    present = present_after_when(scope, clauses.when, present)
    text = None if clauses.text is None else check_template(scope, clauses.text.text)
    missing = _filter_missing(scope, clauses.missing)
    scaleup = _scaleup(scope, clauses.scaleup)
    if clauses.require is None:
        report_missing_clause(scope, node, "require CONDITION")
        return None
    rejects = clauses.require.rejects
    expr = check_condition(scope, clauses.require.condition, FILTER_CONDITION)
    open_metrics = [] if expr is None else find_missing_metrics(scope, expr, present, rejects=rejects)
    _report_older_message(scope, node, clauses.text)  # after the missing values
    if expr is None:
        return None
    if open_metrics and clauses.missing is None:
        report_missing_clause_needed(scope, open_metrics[0], "`missing reject` or `missing pass`")
    if (
        not open_metrics
        and clauses.missing is not None
        and not any(isinstance(part, e.MetricRef | e.GangTraffic) for part in walk(expr))
    ):
        report_unused_missing_clause(scope, clauses.missing)
    if rejects:
        _lint_absent_label_passes(scope, expr, present)
    recovery = check_recovery(scope, clauses.require, expr)
    if recovery is None:
        return None
    condition = fold_constants(recovery)
    _lint_constant_condition(scope, clauses.require, condition)
    return FilterRule(
        name=node.name.text,
        when=when,
        rejects=rejects,
        condition=condition,
        missing=missing if open_metrics else None,
        scaleup=scaleup,
        template=text,
        locked=node.locked,
        span=node.name.span,
    )


def _report_older_message(scope: Scope, node: s.FilterDecl, clause: s.MessageClause | None) -> None:
    """`else "text"` ends an older filter with its message. After a string it also reads like a fallback."""
    if clause is None or not clause.is_older_form:
        return
    written = clause.text.span.text
    operand = _string_before(scope, node, clause)
    if operand is None:
        scope.report(
            "PS311",
            "the message of a filter begins with `says`",
            clause.span,
            label="older form",
            help=f"write `says {written}`; `policysched fmt` rewrites it",
        )
        return
    value = operand.span.text
    advice = f"for a message write `says {written}`; for a value write `({value} else {written})`"
    for at, reported in enumerate(scope.diagnostics):
        if reported.code == "PS201" and reported.span == operand.span:
            message = Label(clause.span, "this is the message of the filter, not a value")
            scope.diagnostics[at] = replace(reported, help=advice, related=(message,))
            return
    scope.report(
        "PS312",
        f"`else {written}` is the message of the filter, not a value for `{value}`",
        clause.span,
        label="message",
        help=advice,
        related=(Label(operand.span, "can be absent, and has no fallback"),),
    )


def _string_before(scope: Scope, node: s.FilterDecl, clause: s.MessageClause) -> s.Expression | None:
    """The string that the clause directly follows in the text, if it can be absent."""
    ends = {other.span.end: other for other in node.clauses if other.span.end <= clause.span.start}
    before = ends[max(ends)] if ends else None
    match before:
        case s.RequireClause(condition=operand, recover=None):
            pass
        case _:
            return None
    while isinstance(operand, s.BinaryExpr) or (isinstance(operand, s.UnaryExpr) and operand.op == "not"):
        operand = operand.right if isinstance(operand, s.BinaryExpr) else operand.operand
        if operand.span.text.startswith("("):
            return None
    if not isinstance(operand, s.AttributeExpr | s.NameExpr):
        return None
    draft = Scope(names=scope.names, broken_names=scope.broken_names, resources=scope.resources)
    expr = check_expression(draft, operand, FILTER_CONDITION)
    return operand if expr is not None and type_of(expr) == STRING.as_optional() else None


def _lint_absent_label_passes(scope: Scope, expr: e.Expr, present: PresentReads) -> None:
    """`reject node.labels["zone"] != "z1"`: an absent label does not reject, and neither does `z1`."""
    holes = set(possibly_missing(expr, present))
    for part in expr.items if isinstance(expr, e.And | e.Or) else (expr,):
        match part:
            case e.Compare(op="!=", left=read, right=e.Const()) | e.Not(operand=e.In(item=read)) if (
                read in holes
            ):
                value = part.right if isinstance(part, e.Compare) else cast(e.In, part.operand).options
                word = "==" if isinstance(part, e.Compare) else "in"
                scope.report(
                    "PS317",
                    f"a node without `{read.span.text}` is not rejected",
                    part.span,
                    label="an absent value does not reject",
                    help=f'to reject it, write `require ({read.span.text} else "") {word} {value.span.text}`; '
                    f"if it may pass, `reject has {read.span.text} and ...`",
                )


def _lint_constant_condition(scope: Scope, clause: s.RequireClause, condition: e.Expr) -> None:
    if scope.names_parameter(clause.condition.span):
        return
    rejected = "every" if is_constant(condition, clause.rejects) else "no"
    if is_constant(condition, True):
        scope.report("PS301", f"always true: the filter rejects {rejected} node", clause.condition.span)
    elif is_constant(condition, False):
        scope.report("PS302", f"never true: the filter rejects {rejected} node", clause.condition.span)


def _filter_missing(scope: Scope, clause: s.MissingClause | None) -> Literal["reject", "pass"] | None:
    if clause is None:
        return None
    word = clause.choice.text if isinstance(clause.choice, s.Identifier) else clause.choice.span.text
    if word in ("reject", "pass"):
        return cast(Literal["reject", "pass"], word)
    report_unknown_choice(scope, word, clause.choice.span, "`missing` in a filter", ("reject", "pass"))
    return None


def _scaleup(scope: Scope, clause: s.ScaleupClause | None) -> bool:
    if clause is None:
        return True
    if clause.choice.text not in ("yes", "no"):
        report_unknown_choice(scope, clause.choice.text, clause.choice.span, "`scaleup`", ("yes", "no"))
    return clause.choice.text != "no"
