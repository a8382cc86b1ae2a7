"""One rule: a filter, a score or a built-in."""

from policysched.builtins.registry import BUILTINS
from policysched.lang.check.builtin_parameters import check_builtin_parameters
from policysched.lang.check.filters import check_filter
from policysched.lang.check.presence import PresentReads
from policysched.lang.check.rule_clauses import RuleClauses, clauses_by_slot
from policysched.lang.check.scope import Scope
from policysched.lang.check.scores import check_score, check_weight
from policysched.lang.check.shared_clauses import check_when
from policysched.lang.ir.rules import BuiltinFilter, BuiltinScore, Rule
from policysched.lang.syntax import tree as s


def check_rule(scope: Scope, node: s.FilterDecl | s.ScoreDecl, present: PresentReads) -> Rule | None:
    """The rule; None after a diagnostic. `present` are the reads that the enclosing layer guards."""
    errors = scope.error_count()
    clauses = clauses_by_slot(node.clauses)
    declaration = BUILTINS.get(node.name.text)
    rule: Rule | None
    if declaration is not None:
        rule = _check_builtin(scope, node, clauses, present)
    elif isinstance(node, s.FilterDecl):
        rule = check_filter(scope, node, clauses, present)
    else:
        rule = check_score(scope, node, clauses, present)
    return None if scope.error_count() > errors else rule


# ── built-ins ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_builtin(
    scope: Scope, node: s.FilterDecl | s.ScoreDecl, clauses: RuleClauses, present: PresentReads
) -> Rule | None:
    name = node.name.text
    declaration = BUILTINS[name]
    kind = "filter" if isinstance(node, s.FilterDecl) else "score"
    own = clauses.require or clauses.value
    if own is not None:
        scope.report(
            "PS219",
            f"`{name}` is the name of a built-in",
            node.name.span,
            help=f"choose another name, or remove `{own.span.text.split()[0] if own.span.text else 'require'}`",
        )
        return None
    if not (declaration.filters if kind == "filter" else declaration.scores):
        other = "score" if kind == "filter" else "filter"
        scope.report(
            "PS219",
            f"the built-in `{name}` is not a {kind}",
            node.name.span,
            help=f"it is a {other}: `{other} {name}`",
        )
        return None
    for clause in (clauses.missing, clauses.scaleup, clauses.text, clauses.normalize):
        if clause is not None:
            scope.report(
                "PS217",
                f"this clause is not allowed for the built-in `{name}`",
                clause.span,
                help="remove the clause",
            )
    when = check_when(scope, clauses.when, present)
    params = check_builtin_parameters(
        scope, declaration, node.params, node.name.span, scoring=kind == "score"
    )
    if params is None:
        return None
    if kind == "filter":
        return BuiltinFilter(name, name, params, when, node.locked, node.name.span)
    weight = declaration.default_weight or 1
    if clauses.weight is not None:
        weight = check_weight(scope, clauses.weight.weight)
    return BuiltinScore(name, name, weight, params, when, node.locked, node.name.span)
