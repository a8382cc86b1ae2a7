"""Layers: changes to the rules for the pods that a condition selects."""

from collections.abc import Iterable
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
    return apply_layers(rules, (layer,))


def apply_layers(rules: RuleSet, layers: Iterable[Layer]) -> RuleSet:
    """The same for one layer after the other, in linear time: a policy has hundreds of rules and changes."""
    filters: dict[str, FilterRule | BuiltinFilter] = {rule.name: rule for rule in rules.filters}
    scores: dict[str, ScoreRule | BuiltinScore] = {rule.name: rule for rule in rules.scores}
    for layer in layers:
        for change in layer.changes:
            match change:
                case SetRule(rule=FilterRule() | BuiltinFilter() as rule):
                    filters[rule.name] = rule
                case SetRule(rule=ScoreRule() | BuiltinScore() as score):
                    scores[score.name] = score
                case SetWeight(score=name, weight=weight):
                    _amend_rule(scores, name, {"weight": weight})
                case DropRule(name=name, kind="filter"):
                    filters.pop(name, None)
                case DropRule(name=name):
                    scores.pop(name, None)
                case AmendRule(name=name, kind="filter", changes=pairs):
                    _amend_rule(filters, name, dict(pairs))
                case AmendRule(name=name, changes=pairs):
                    _amend_rule(scores, name, dict(pairs))
                case _:
                    raise AssertionError(f"unknown layer change: {change}")
    return RuleSet(tuple(filters.values()), tuple(scores.values()))


_RuleT = TypeVar("_RuleT", bound=Rule)


def _amend_rule(rules: dict[str, _RuleT], name: str, fields: dict[str, Any]) -> None:
    if name in rules:
        rules[name] = replace(rules[name], **fields)
