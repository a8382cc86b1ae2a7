"""What a layer does to rules: its changes, one after the other, each in its place."""

from dataclasses import replace
from typing import Any, TypeVar

from policysched.lang.ir.program import (
    AmendRule,
    BuiltinFilter,
    BuiltinScore,
    DropRule,
    FilterRule,
    Layer,
    LayerChange,
    Rule,
    RuleSet,
    ScoreRule,
    SetRule,
    SetWeight,
)

_RuleT = TypeVar("_RuleT", bound=Rule)


def apply_layer(rules: RuleSet, layer: Layer) -> RuleSet:
    """The rules with the layer's changes. A change whose rule is not there does nothing; a set rule comes last then."""
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
            raise AssertionError(f"not a change of a layer: {change}")


def _set_rule(rules: tuple[_RuleT, ...], new: _RuleT) -> tuple[_RuleT, ...]:
    if any(rule.name == new.name for rule in rules):
        return tuple(new if rule.name == new.name else rule for rule in rules)
    return (*rules, new)


def _amend_rule(rules: tuple[_RuleT, ...], name: str, fields: dict[str, Any]) -> tuple[_RuleT, ...]:
    return tuple(replace(rule, **fields) if rule.name == name else rule for rule in rules)
