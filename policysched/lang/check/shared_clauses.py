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


def check_when(scope: Scope, clause: s.WhenClause | None, known: PresentReads) -> e.Expr | None:
    """The folded condition; None where there is none or it is always true."""
    if clause is None:
        return None
    found = check_condition(scope, clause.condition, WHEN_CONDITION)
    if found is None or not check_always_present(scope, found, known):
        return None
    folded = fold_constants(found)
    set_elsewhere = scope.names_parameter(clause.condition.span)
    if is_constant(folded, True):
        if not set_elsewhere:
            scope.report("PS301", "this `when` is always true", clause.condition.span, help="leave it out")
        return None
    if is_constant(folded, False) and not set_elsewhere:
        scope.report("PS302", "this `when` is never true: the rule never applies", clause.condition.span)
    return folded


def present_after_when(scope: Scope, clause: s.WhenClause | None, known: PresentReads) -> PresentReads:
    """What the rule's `when` makes sure of. Read again quietly: the findings were reported by `check_when`."""
    if clause is None:
        return known
    found = check_condition(
        Scope(names=scope.names, broken_names=scope.broken_names), clause.condition, WHEN_CONDITION
    )
    return known if found is None else known | implied_present(found, True)


def report_parameters(scope: Scope, node: s.FilterDecl | s.ScoreDecl) -> None:
    if node.params:
        near = did_you_mean(node.name.text, BUILTINS)
        scope.report(
            "PS222",
            f"`{node.name.text}` is a rule of your own and has no parameters",
            node.params[0].span,
            help=near or "only built-ins have parameters",
        )


def find_missing_metrics(
    scope: Scope, found: e.Expr, known: PresentReads, *, rejects: bool
) -> list[e.MetricRef | e.GangTraffic]:
    """Report what may be missing unasked; the metrics that may be. In `reject` an absent text of the node does not
    reject."""
    metrics: list[e.MetricRef | e.GangTraffic] = []
    for hole in possibly_missing(found, known):
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


def report_missing_clause_needed(scope: Scope, hole: e.MetricRef | e.GangTraffic, words: str) -> None:
    scope.report(
        "PS214",
        f"nothing says what to do while `{hole.name}` has no sample",
        hole.span,
        label="can be missing",
        help=f"add {words} to the rule, or write `{else_operand_text(hole)} else VALUE`",
    )


def report_unused_missing_clause(scope: Scope, clause: s.MissingClause) -> None:
    scope.report("PS310", "this clause has no effect: no metric is read", clause.span, help="leave it out")


def report_missing_clause(scope: Scope, node: s.FilterDecl | s.ScoreDecl, missing: str, example: str) -> None:
    name = node.name.text
    near = did_you_mean(name, BUILTINS)
    scope.report(
        "PS214",
        f"`{name}` is no built-in, and says nothing of what it {missing}",
        node.name.span,
        label=f"no `{example.split()[0]}`",
        help=near or f"add `{example}`",
    )


def report_unknown_choice(scope: Scope, word: str, span: Span, where: str, choices: tuple[str, ...]) -> None:
    scope.report(
        "PS212",
        f"`{word}` is no value of {where}",
        span,
        label="unknown word",
        help=did_you_mean(word, choices) or f"it is {join_alternatives(choices)}",
    )
