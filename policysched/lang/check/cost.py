"""The limit on a policy's static cost, so that one text cannot stop the decisions of all policies.

The diagnostic underlines the most expensive expression and says what makes it so.
"""

from policysched.lang.check.scope import Scope
from policysched.lang.ir.cost import (
    REPETITIONS_MAX,
    RuleCost,
    expr_cost,
    layer_rules,
    policy_cost,
    repeated_cost,
    rule_cost,
)
from policysched.lang.ir.expr import Aggregate, Expr
from policysched.lang.ir.expr_analysis import children, walk
from policysched.lang.ir.layers import Layer
from policysched.lang.ir.rules import FilterRule, Rule, RuleSet, ScoreRule
from policysched.text import Span

_MOST = 0.99
"""A part with this share of the cost of the whole is underlined instead of it."""


def check_cost(scope: Scope, rules: RuleSet, layers: tuple[Layer, ...], cost_max: int) -> None:
    """Reports a policy whose rules, with those of all layers, cost more than `cost_max` operations."""
    cost = policy_cost(rules, layers)
    if cost.total <= cost_max:
        return
    all_rules = (*rules.filters, *rules.scores, *(rule for layer in layers for rule in layer_rules(layer)))
    costs = [rule_cost(rule) for rule in all_rules]
    highest, rule = max(
        ((cost.total, rule) for cost, rule in zip(costs, all_rules, strict=True)), key=lambda pair: pair[0]
    )
    span, part = _most_expensive_part(rule)
    scope.report(
        "PS501",
        f"the policy costs {_count(cost)}, the limit is {cost_max:,}",
        span,
        label=f"{highest:,} operations"
        + ("" if len(all_rules) == 1 else f", the most of {len(all_rules)} rules"),
        help=_advice(part, highest, cost.total, len(all_rules)),
    )


def _count(cost: RuleCost) -> str:
    per_node = f"{cost.per_node:,} operations per pod and node"
    return per_node if cost.per_pod == 0 else f"{per_node} and {cost.per_pod:,} per pod"


def _most_expensive_part(rule: Rule) -> tuple[Span, Expr | None]:
    """The smallest expression of the rule with nearly all of its cost; the rule itself if it is built in."""
    rule_expressions: list[Expr | None] = [rule.when]
    match rule:
        case FilterRule(condition=condition):
            rule_expressions.append(condition)
        case ScoreRule(value=value):
            rule_expressions.append(value)
    part = max((expr for expr in rule_expressions if expr is not None), key=_total, default=None)
    if part is None:
        return rule.span, None
    limit = _MOST * _total(part)
    while (child := next((child for child in children(part) if _total(child) >= limit), None)) is not None:
        part = child
    return part.span, part


def _total(expr: Expr) -> int:
    return expr_cost(expr).total


def _advice(part: Expr | None, highest: int, total: int, rule_count: int) -> str:
    """What dominates the cost, and what to do about it."""
    repeated = sum(repeated_cost(node) for node in walk(part) if isinstance(node, Aggregate)) if part else 0
    if repeated * 2 > highest:
        advice = (
            f"{repeated:,} of these are aggregates nested in one `after placing`, which are evaluated for up to "
            f"{REPETITIONS_MAX} placements: score the inner and the outer value separately"
        )
        return advice if highest * 2 > total else f"{advice}, and in fewer rules"
    if highest * 2 > total:
        return "split off or simplify this expression"
    return f"the number of rules dominates: replace the {rule_count} rules by fewer"
