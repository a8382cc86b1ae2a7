"""The rules of a policy while its text is applied from top to bottom: new rules at the end, changes in place.

Changes apply to the syntax, so that a changed rule is checked in its final version.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from policysched.builtins.registry import BUILTINS
from policysched.lang.check.rule_clauses import clause_slot, merge_clauses
from policysched.lang.check.scope import Scope, declared_here, did_you_mean
from policysched.lang.syntax import tree as s
from policysched.text import Span

RuleKind = Literal["filter", "score"]
RuleNode = s.FilterDecl | s.ScoreDecl

_SCORE_SLOTS = frozenset({"weight", "value", "normalize"})
_FILTER_SLOTS = frozenset({"require", "scaleup", "text"})


def rule_kind(node: RuleNode) -> RuleKind:
    return "filter" if isinstance(node, s.FilterDecl) else "score"


@dataclass(slots=True)
class RuleTable:
    """Rules by kind and name, in declaration order. `broken_names` are rules with syntax errors; shadow rules (`is_shadow`)
    cannot be changed."""

    scope: Scope
    rules: dict[tuple[RuleKind, str], RuleNode] = field(default_factory=dict)
    broken_names: frozenset[str] = frozenset()
    is_shadow: bool = False

    def add(self, node: RuleNode) -> bool:
        """Add a new rule; False after reporting a duplicate name."""
        key = (rule_kind(node), node.name.text)
        previous = self.rules.get(key)
        if previous is not None:
            self.scope.report(
                "PS213",
                f"duplicate {key[0]} `{key[1]}`",
                node.name.span,
                label="declared again",
                help="choose another name"
                if self.is_shadow
                else f"write `amend {key[1]} ...` or `replace {key[0]} {key[1]} ...` to change it",
                related=(declared_here(previous.name.span),),
            )
            return False
        self.rules[key] = node
        return True

    def replace(self, node: RuleNode) -> bool:
        key = (rule_kind(node), node.name.text)
        below = self.find_rules(key[1], node.name.span, (key[0],))
        if not below or not self.check_unlocked(below[0], node.name.span):
            return False
        self.rules[key] = node
        return True

    def amend(self, node: s.AmendStatement) -> RuleNode | None:
        """The amended rule; None after a diagnostic."""
        below = self.find_rules(node.name.text, node.name.span, amended_kinds(node))
        if not below:
            return None
        if len(below) > 1:
            self.scope.report(
                "PS231",
                f"`{node.name.text}` is both a filter and a score",
                node.name.span,
                label="ambiguous",
                help=f"write `amend filter {node.name.text} ...` or `amend score {node.name.text} ...`",
            )
            return None
        if not self.check_unlocked(below[0], node.name.span):
            return None
        amended = amend_rule(below[0], node)
        self.rules[rule_kind(amended), node.name.text] = amended
        return amended

    def reweight(self, node: s.ReweightStatement) -> RuleNode | None:
        below = self.find_rules(node.name.text, node.name.span, ("score",))
        if not below or not self.check_unlocked(below[0], node.name.span):
            return None
        clause = s.WeightClause(node.weight, node.span)
        changed = replace(below[0], clauses=merge_clauses(below[0].clauses, (clause,)))
        self.rules["score", node.name.text] = changed
        return changed

    def drop(self, node: s.DropStatement) -> tuple[RuleKind, ...]:
        """Remove all rules of the name, or the one of the given kind. Returns the removed kinds."""
        below = self.find_rules(node.name.text, node.name.span, _kinds(node.kind))
        if not all(self.check_unlocked(rule, node.name.span) for rule in below):
            return ()
        kinds = tuple(rule_kind(rule) for rule in below)
        for kind in kinds:
            del self.rules[kind, node.name.text]
        return kinds

    def find_rules(self, name: str, span: Span, kinds: tuple[RuleKind, ...]) -> list[RuleNode]:
        """The rules with the name and one of the kinds; reports it if there are none."""
        rules = [self.rules[kind, name] for kind in kinds if (kind, name) in self.rules]
        if not rules and name not in self.broken_names:
            kind_text = kinds[0] if len(kinds) == 1 else "rule"
            self.scope.report(
                "PS229",
                f"unknown {kind_text} `{name}`",
                span,
                label="not declared above",
                help=did_you_mean(name, [rule_name for kind, rule_name in self.rules if kind in kinds]),
            )
        return rules

    def check_unlocked(self, node: RuleNode, span: Span) -> bool:
        if node.locked:
            self.scope.report(
                "PS230",
                f"the {rule_kind(node)} `{node.name.text}` is locked",
                span,
                label="cannot be changed",
                related=(declared_here(node.name.span),),
            )
        return not node.locked


def _kinds(written: s.Identifier | None) -> tuple[RuleKind, ...]:
    if written is None:
        return ("filter", "score")
    return ("filter",) if written.text == "filter" else ("score",)


def amended_kinds(node: s.AmendStatement) -> tuple[RuleKind, ...]:
    """The kinds of rules that the statement can mean: as written, or by the clauses that one of them has alone."""
    slots = {clause_slot(clause) for clause in node.clauses}
    if node.kind is not None:
        return _kinds(node.kind)
    if slots & _SCORE_SLOTS:
        return ("score",)
    if node.params:
        return ("filter",) if _amends_filter_parameters(node) else ("score",)
    return ("filter",) if slots & _FILTER_SLOTS else ("filter", "score")


def _amends_filter_parameters(node: s.AmendStatement) -> bool:
    """Whether the parameters are those of the built-in's filter and not of its score, which has the same name."""
    builtin = BUILTINS.get(node.name.text)
    if builtin is None:
        return False
    amended = {param.name.text for param in node.params or ()}
    of_filter = {parameter.name for parameter in builtin.filter_parameters}
    of_score = {parameter.name for parameter in builtin.parameters}
    return not amended & of_score and bool(amended & of_filter or not of_score)


def amend_rule(below: RuleNode, node: s.AmendStatement) -> RuleNode:
    """`below` with the amended clauses and parameters, which replace those of the same name."""
    params = below.params
    if node.params is not None:
        amended = {param.name.text for param in node.params}
        kept_params = tuple(param for param in below.params or () if param.name.text not in amended)
        params = (*kept_params, *node.params)
    return replace(below, clauses=merge_clauses(below.clauses, node.clauses), params=params)
