"""Lints on the rules of a valid policy, compared with each other: filters, weights, changes that are overwritten."""

from collections.abc import Iterable, Iterator

from policysched.lang.check.rule_clauses import clause_slot
from policysched.lang.check.rule_table import RuleKind, amended_kinds
from policysched.lang.check.scope import Scope
from policysched.lang.ir import expr as e
from policysched.lang.ir.domains import DomainAnalysis, meet
from policysched.lang.ir.expr_analysis import walk
from policysched.lang.ir.layers import AmendRule, DropRule, Layer, SetRule, SetWeight
from policysched.lang.ir.rules import FilterRule, RuleSet
from policysched.lang.syntax import tree as s
from policysched.text import Label, Source, Span

SCORE_MAX = 100
FILTERS_COMPARED_MAX = 60
"""Each filter is compared with each other; a policy with more is not checked."""


def lint_rules(scope: Scope, source: Source, rules: RuleSet, layers: Iterable[Layer]) -> None:
    """Report filters that exclude each other or repeat one before, and a weight that decides alone."""
    changed = {_changed_name(change) for layer in layers for change in layer.changes}
    filters = [
        rule
        for rule in rules.filters
        if isinstance(rule, FilterRule) and rule.name not in changed and not _names_parameter(scope, rule)
    ]
    own = [rule for rule in filters if rule.span.source is source]
    if len(own) <= FILTERS_COMPARED_MAX:
        _lint_filters(scope, own)
    if not any(isinstance(change, SetRule | SetWeight) for layer in layers for change in layer.changes):
        _lint_dominating_score(scope, source, rules)


def _names_parameter(scope: Scope, rule: FilterRule) -> bool:
    conditions = (rule.condition,) if rule.when is None else (rule.condition, rule.when)
    return any(scope.names_parameter(condition.span) for condition in conditions)


def _changed_name(change: object) -> str:
    match change:
        case SetWeight(score=name) | DropRule(name=name) | AmendRule(name=name):
            return name
        case SetRule(rule=rule):
            return rule.name
        case _:
            raise AssertionError(f"unknown layer change: {change}")


# ── filters ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _lint_filters(scope: Scope, filters: list[FilterRule]) -> None:
    analysis = DomainAnalysis()
    for at, later in enumerate(filters):
        if not _is_certain(later):
            continue
        for earlier in filters[:at]:
            if (
                _is_certain(earlier)
                and earlier.when in (None, later.when)
                and _lint_two(scope, analysis, earlier, later)
            ):
                break


def _lint_two(scope: Scope, analysis: DomainAnalysis, earlier: FilterRule, later: FilterRule) -> bool:
    """Report that no node passes both, or that the later one rejects no node that passes the earlier one."""
    passes = analysis.implied(earlier.condition, not earlier.rejects)
    if passes is None:
        return False  # reported as a condition
    related = (Label(earlier.span, "the other filter"),)
    if later.when == earlier.when:
        passes_later = analysis.implied(later.condition, not later.rejects)
        if passes_later is not None and meet(passes, passes_later) is None:
            scope.report(
                "PS305",
                f"no node passes both `{earlier.name}` and `{later.name}`",
                later.span,
                label="excludes the other filter",
                help="if either condition is enough, join them with `or` in one filter",
                related=related,
            )
            return True
    rejected = analysis.implied(later.condition, later.rejects)
    if rejected is None or meet(passes, rejected) is not None:
        return False
    scope.report(
        "PS304",
        f"`{later.name}` rejects no node that `{earlier.name}` does not reject",
        later.span,
        label="has no effect",
        help="remove it, or move it before the other if its message is meant for a more specific case",
        related=related,
    )
    return True


def _is_certain(rule: FilterRule) -> bool:
    """Whether the filter has a value for every node: what is missing neither passes nor rejects."""
    if rule.missing is not None:
        return False
    if not rule.rejects:
        return True
    optional = (e.Attr, e.InputRef)
    return not any(isinstance(part, optional) and part.type.optional for part in walk(rule.condition))


# ── weights ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _lint_dominating_score(scope: Scope, source: Source, rules: RuleSet) -> None:
    """A score of which one point outweighs the full scores of all others."""
    weights = [rule.weight for rule in rules.scores]
    for rule in rules.scores:
        other_weights = sum(weights) - rule.weight
        if not other_weights or rule.weight <= SCORE_MAX * other_weights or rule.span.source is not source:
            continue
        scope.report(
            "PS416",
            f"one point of `{rule.name}` outweighs all other scores together",
            rule.span,
            label=f"weight {rule.weight:,}, all others {other_weights:,}",
            help="the other scores only break ties; lower the weight, or drop them if that is meant",
        )


# ── changes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def lint_overwritten_changes(scope: Scope, source: Source, statements: Iterable[s.Statement]) -> None:
    """Report a change of a rule that a later statement of the same block replaces."""
    latest: dict[tuple[RuleKind, str, str], Span] = {}
    for statement in statements:
        if statement.span.source is not source:
            continue
        if isinstance(statement, s.LayerDecl):
            lint_overwritten_changes(scope, source, statement.body)
            continue
        changes = list(_changes(statement))
        before = [latest.get(change) for change in changes]
        if changes and all(span is not None and span == before[0] for span in before):
            assert before[0] is not None
            scope.report(
                "PS310",
                f"`{before[0].text.split()[0]} {changes[0][1]}` has no effect",
                before[0],
                label="replaced below",
                help="remove it",
                related=(Label(statement.span, "replaces it"),),
            )
        latest.update(dict.fromkeys(changes, statement.span))


def _changes(statement: s.Statement) -> Iterator[tuple[RuleKind, str, str]]:
    """The rule and the clause of each change of one statement."""
    match statement:
        case s.ReweightStatement(name=name):
            yield "score", name.text, "weight"
        case s.AmendStatement(name=name, clauses=clauses, params=None):
            for kind in amended_kinds(statement):
                for clause in clauses:
                    yield kind, name.text, clause_slot(clause)
        case _:
            return
