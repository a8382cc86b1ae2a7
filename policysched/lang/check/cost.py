"""The limit on a policy's static cost, so that one text cannot stop the decisions of all policies.

The diagnostic underlines the most expensive expression and says what makes it so.
"""

from policysched.lang.check.scope import Scope
from policysched.lang.check.states import check_state_values
from policysched.lang.ir.cost import (
    REPETITIONS_MAX,
    RuleCost,
    expr_cost,
    layer_rules,
    policy_cost,
    repeated_cost,
    rule_cost,
    statements_cost,
)
from policysched.lang.ir.expr import Aggregate, Expr
from policysched.lang.ir.expr_analysis import children, walk
from policysched.lang.ir.layers import Layer
from policysched.lang.ir.program import GangSpec, OrderKey, PreemptionSpec
from policysched.lang.ir.rules import FilterRule, Rule, RuleSet, ScoreRule
from policysched.text import Span

_MOST = 0.99
"""A part with this share of the cost of the whole is underlined instead of it."""


def check_cost(
    scope: Scope,
    rules: RuleSet,
    layers: tuple[Layer, ...],
    singletons: tuple[tuple[OrderKey, ...], GangSpec | None, PreemptionSpec | None],
    cost_max: int,
) -> None:
    """Reports a policy whose rules, with those of all layers, and other statements cost more than `cost_max` operations."""
    check_state_values(scope)
    statements = statements_cost(
        *singletons,
        scope.states().values(),
        scope.valid_quotas().values(),
        scope.valid_resources().values(),
        scope.metrics().values(),
        scope.inputs().values(),
    )
    cost = sum((of_statement for of_statement, _ in statements), policy_cost(rules, layers))
    if cost.total <= cost_max:
        return
    all_rules = (*rules.filters, *rules.scores, *(rule for layer in layers for rule in layer_rules(layer)))
    of_rules = [(rule_cost(rule).total, rule.span) for rule in all_rules]
    of_others = [(of_one.total, span) for of_one, span in statements]
    kind, costs = max(
        ("rules", of_rules),
        ("expressions beside the rules", of_others),
        key=lambda named: max((number for number, _ in named[1]), default=0),
    )
    highest, span = max(costs, key=_number)
    part = None
    if kind == "rules":
        span, part = _most_expensive_part(max(all_rules, key=lambda rule: rule_cost(rule).total))
    scope.report(
        "PS501",
        f"the policy costs {_count(cost)}, the limit is {cost_max:,}",
        span,
        label=f"{highest:,} operations" + ("" if len(costs) == 1 else f", the most of {len(costs)} {kind}"),
        help=_advice(part, highest, cost.total, f"{len(costs)} {kind}"),
    )


def _number(cost: tuple[int, Span]) -> int:
    return cost[0]


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


def _advice(part: Expr | None, highest: int, total: int, counted: str) -> str:
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
    return f"their number dominates: replace the {counted} by fewer"
