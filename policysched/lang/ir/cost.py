"""The static cost of expressions, rules and policies: operations for each pod, and for each pod and node.

The cost bounds the time of one evaluation before it runs. `policysched show` prints it, and the checker rejects a policy
above a limit (`lang.check.cost`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from policysched.builtins.registry import BUILTINS
from policysched.lang.ir.aggregates import STEP_BITS, nested_aggregates
from policysched.lang.ir.expr import (
    Aggregate,
    And,
    Attr,
    Bucket,
    Call,
    Const,
    CountPodsOnNode,
    ElementField,
    Else,
    Expr,
    GangTraffic,
    If,
    In,
    InputRef,
    ListFold,
    MetricRef,
    Now,
    Or,
    PodTotal,
    Rank,
    Split,
    Stage,
    StartsWith,
    StateRef,
    SumPodsOnNode,
    WeeklyWindow,
)
from policysched.lang.ir.expr_analysis import children, stage_of, walk
from policysched.lang.ir.layers import AmendRule, Layer, SetRule
from policysched.lang.ir.rules import BuiltinFilter, BuiltinScore, FilterRule, Rule, RuleSet, ScoreRule

REPETITIONS_MAX = 1 << STEP_BITS
"""How often an aggregate `after placing` evaluates the part of its body that depends on a nested aggregate."""


@dataclass(frozen=True, slots=True)
class RuleCost:
    """Operations for each pod, and for each pod and node. A built-in counts the values that its definition reads."""

    per_pod: int = 0
    per_node: int = 0

    def __add__(self, other: "RuleCost") -> "RuleCost":
        return RuleCost(self.per_pod + other.per_pod, self.per_node + other.per_node)

    @property
    def total(self) -> int:
        """The number that the limit bounds."""
        return self.per_pod + self.per_node


def expr_cost(expr: Expr | None) -> RuleCost:
    """The number of operations: those that depend only on the pod count per pod, constants do not count, and a `let`
    counts once however often it is used."""
    total = RuleCost()
    stages: dict[int, Stage] = {}
    for part in () if expr is None else walk(expr):
        stage = stage_of(part, stages)
        weight = _operation_count(part)
        if isinstance(part, Aggregate):
            weight += repeated_cost(part)
        if stage & Stage.NODE:
            total += RuleCost(per_node=weight)
        elif stage is not Stage.CONSTANT:
            total += RuleCost(per_pod=weight)
    return total


def repeated_cost(aggregate: Aggregate) -> int:
    """The upper bound of operations repeated for each distinct number of a nested aggregate; 0 without one."""
    repeating = {part for part in nested_aggregates(aggregate) if part.body_after_placement is not None}
    if not repeating:
        return 0
    bodies = (aggregate.body, aggregate.body_after_placement or aggregate.body)
    repeated = sum(_dependent_operations(body, repeating) for body in bodies)
    return (repeated + _operation_count(aggregate)) * REPETITIONS_MAX


def _dependent_operations(body: Expr, repeating: set[Aggregate]) -> int:
    """The operations of the body that depend on one of the aggregates, each shared part once."""
    depends: dict[int, bool] = {}
    operations = 0

    def visit(part: Expr) -> bool:
        nonlocal operations
        if isinstance(part, Aggregate):
            return part in repeating
        if id(part) not in depends:
            of_children = [visit(child) for child in children(part)]
            depends[id(part)] = any(of_children)
            operations += _operation_count(part) if depends[id(part)] else 0
        return depends[id(part)]

    visit(body)
    return operations


def _operation_count(expr: Expr) -> int:
    match expr:
        case Const() | Attr() | InputRef() | MetricRef() | ElementField() | Now():
            return 0
        case And(items=items) | Or(items=items):
            return len(items) - 1
        case In() | Rank() | StartsWith() | Bucket() | Split() | Else() | If() | WeeklyWindow():
            return 2
        case Aggregate(function=function, body_after_placement=after):
            return (8 if function == "stddev" else 3) + (0 if after is None else 3)
        case Call(function="normal_cdf"):
            return 4
        case Call(function="beta_cdf"):
            return 60  # about forty steps of a continued fraction, and logarithms
        case CountPodsOnNode(where=where):
            return 1 if where is None else 8  # each pod of the node is read
        case GangTraffic():
            return 8  # each member of the gang is read
        case StateRef():
            return 2  # rows are rebuilt when the values of the key change
        case PodTotal():
            return 3  # a lookup where the condition tests equality
        case SumPodsOnNode():
            return 1  # a column maintained with placements
        case ListFold():
            return 8  # each element of the list
        case _:
            return 1


def rule_cost(rule: Rule) -> RuleCost:
    total = expr_cost(rule.when)
    match rule:
        case BuiltinFilter(builtin=name) | BuiltinScore(builtin=name):
            return total + RuleCost(per_node=BUILTINS[name].cost_per_node)
        case FilterRule(condition=condition):
            return total + expr_cost(condition)
        case ScoreRule(value=value):
            return total + expr_cost(value) + RuleCost(per_node=3)  # normalise, weight, add


def layer_rules(layer: Layer) -> Iterator[Rule]:
    """The rules that the layer sets."""
    for change in layer.changes:
        if isinstance(change, SetRule):
            yield change.rule


def layer_cost(layer: Layer) -> RuleCost:
    """The cost of everything that the layer adds, as if it replaced nothing."""
    total = sum((rule_cost(rule) for rule in layer_rules(layer)), expr_cost(layer.condition))
    for change in layer.changes:
        if isinstance(change, AmendRule):
            for _, value in change.changes:
                total += expr_cost(value) if isinstance(value, Expr) else RuleCost()
    return total


def policy_cost(rules: RuleSet, layers: tuple[Layer, ...]) -> RuleCost:
    """The upper bound for a pod to which all layers apply."""
    total = sum((rule_cost(rule) for rule in (*rules.filters, *rules.scores)), RuleCost())
    return sum(map(layer_cost, layers), total)
