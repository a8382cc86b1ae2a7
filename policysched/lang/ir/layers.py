"""Layers: changes to the rules for the pods that a condition selects."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from policysched.lang.ir.expr import Expr
from policysched.lang.ir.rules import BuiltinFilter, BuiltinScore, FilterRule, Rule, RuleSet, ScoreRule
from policysched.text import Span


@dataclass(frozen=True, slots=True)
class SetRule:
    """Replaces the rule of the same kind and name, or appends it where there is none: a new rule, a `replace`, or an
    `amend` that the checker resolved against the rules below."""

    rule: Rule


@dataclass(frozen=True, slots=True)
class SetWeight:
    score: str
    weight: int


@dataclass(frozen=True, slots=True)
class DropRule:
    name: str
    kind: Literal["filter", "score"]


@dataclass(frozen=True, slots=True)
class AmendRule:
    """Replaces single fields of the rule as it is when the layer applies (an earlier layer may have changed it).
    `changes` are pairs of a field of the rule's class and its new value."""

    name: str
    kind: Literal["filter", "score"]
    changes: tuple[tuple[str, object], ...]


LayerChange = SetRule | SetWeight | DropRule | AmendRule


@dataclass(frozen=True, slots=True)
class Layer:
    """Changes for the pods for which `condition` is True; it reads the pod and its namespace only. A change to a rule
    that an earlier layer dropped has no effect."""

    name: str
    condition: Expr
    changes: tuple[LayerChange, ...]
    span: Span = field(compare=False)


def apply_layer(rules: RuleSet, layer: Layer) -> RuleSet:
    """The rules with the layer's changes applied in order."""
    for change in layer.changes:
        rules = _apply_change(rules, change)
    return rules


def _apply_change(rules: RuleSet, change: LayerChange) -> RuleSet:
    match change:
        case SetRule(rule=FilterRule() | BuiltinFilter() as rule):
            return replace(rules, filters=_set_rule(rules.filters, rule))
        case SetRule(rule=ScoreRule() | BuiltinScore() as score):
            return replace(rules, scores=_set_rule(rules.scores, score))
        case SetWeight(score=name, weight=weight):
            return replace(rules, scores=_amend_rule(rules.scores, name, {"weight": weight}))
        case DropRule(name=name, kind="filter"):
            return replace(rules, filters=tuple(rule for rule in rules.filters if rule.name != name))
        case DropRule(name=name):
            return replace(rules, scores=tuple(rule for rule in rules.scores if rule.name != name))
        case AmendRule(name=name, kind="filter", changes=pairs):
            return replace(rules, filters=_amend_rule(rules.filters, name, dict(pairs)))
        case AmendRule(name=name, changes=pairs):
            return replace(rules, scores=_amend_rule(rules.scores, name, dict(pairs)))
        case _:
            raise AssertionError(f"unknown layer change: {change}")


_RuleT = TypeVar("_RuleT", bound=Rule)


def _set_rule(rules: tuple[_RuleT, ...], new: _RuleT) -> tuple[_RuleT, ...]:
    if any(rule.name == new.name for rule in rules):
        return tuple(new if rule.name == new.name else rule for rule in rules)
    return (*rules, new)


def _amend_rule(rules: tuple[_RuleT, ...], name: str, fields: dict[str, Any]) -> tuple[_RuleT, ...]:
    return tuple(replace(rule, **fields) if rule.name == name else rule for rule in rules)
