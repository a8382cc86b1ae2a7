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
    Rules,
    ScoreRule,
    SetRule,
    SetWeight,
)

_AnyRule = TypeVar("_AnyRule", bound=Rule)


def apply_layer(rules: Rules, layer: Layer) -> Rules:
    """The rules with the layer's changes. A change whose rule is not there does nothing; a set rule comes last then."""
    for change in layer.changes:
        rules = _apply(rules, change)
    return rules


def _apply(rules: Rules, change: LayerChange) -> Rules:
    match change:
        case SetRule(rule=FilterRule() | BuiltinFilter() as rule):
            return replace(rules, filters=_put(rules.filters, rule))
        case SetRule(rule=ScoreRule() | BuiltinScore() as score):
            return replace(rules, scores=_put(rules.scores, score))
        case SetWeight(score=name, weight=weight):
            return replace(rules, scores=_changed(rules.scores, name, {"weight": weight}))
        case DropRule(name=name, kind="filter"):
            return replace(rules, filters=tuple(rule for rule in rules.filters if rule.name != name))
        case DropRule(name=name):
            return replace(rules, scores=tuple(rule for rule in rules.scores if rule.name != name))
        case AmendRule(name=name, kind="filter", changes=pairs):
            return replace(rules, filters=_changed(rules.filters, name, dict(pairs)))
        case AmendRule(name=name, changes=pairs):
            return replace(rules, scores=_changed(rules.scores, name, dict(pairs)))
        case _:
            raise AssertionError(f"not a change of a layer: {change}")


def _put(rules: tuple[_AnyRule, ...], new: _AnyRule) -> tuple[_AnyRule, ...]:
    if any(rule.name == new.name for rule in rules):
        return tuple(new if rule.name == new.name else rule for rule in rules)
    return (*rules, new)


def _changed(rules: tuple[_AnyRule, ...], name: str, fields: dict[str, Any]) -> tuple[_AnyRule, ...]:
    return tuple(replace(rule, **fields) if rule.name == name else rule for rule in rules)
