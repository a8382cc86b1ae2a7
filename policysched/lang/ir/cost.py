"""The static cost of expressions, rules and policies: operations for each pod, and for each pod and node.

The cost bounds the time of one evaluation before it runs. `policysched show` prints it, and the checker rejects a policy
above a limit (`lang.check.cost`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from policysched.builtins.registry import BUILTINS
from policysched.lang.ir.aggregates import STEP_BITS, nested_aggregates
from policysched.lang.ir.declarations import Input, Metric, ResourceSpec, StateSpec
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
from policysched.lang.ir.expr_analysis import children, stage_of
from policysched.lang.ir.layers import AmendRule, Layer, SetRule
from policysched.lang.ir.program import GangSpec, OrderKey, PreemptionSpec
from policysched.lang.ir.quotas import QuotaSpec
from policysched.lang.ir.rules import (
    BuiltinFilter,
    BuiltinScore,
    FilterRule,
    MessageTemplate,
    Rule,
    RuleSet,
    ScoreRule,
)
from policysched.text import Span

LONG_TEXT_READ = 100
"""Reading the JSON in an annotation of 64 KiB, or splitting one of 256 KiB, takes 4 to 8 ms."""
ELEMENT_OF_POD = 25
"""An operation on the elements of a list of the pod, of which there are 1,000, takes a millisecond."""
ELEMENT_OF_POD_BY_NODE = 250
"""The same where the elements are compared with the nodes."""
TEXT_OF_NODE = 40
"""A hash of a text of each node, or a search in one, takes 1 to 2 ms: all are different."""
CONSTANTS = 10
"""Comparing the nodes with a constant of a list, of which there may be 490, takes 3 microseconds: one in ten counts."""
POD_OF_NODE = 75
"""An operation on the pods of all nodes, 30 on each, takes up to 10 ms: tenants make them all different."""
SHOWN = 4
"""What a message reads of a node is computed in explanations alone: one of so many operations counts."""
VICTIM = 10
"""Times that an expression about a victim, or the request of a resource, counts: it is evaluated for pods of several
nodes."""
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
    """The number of operations: those that depend only on the pod count per pod, constants do not count. Of what depends on
    the node, a `let` counts once however often it is used. Functions of the pod alone compute it for each use."""
    total = RuleCost()
    stages: dict[int, Stage] = {}
    uses: dict[int, int] = {}
    pending, visited = [] if expr is None else [expr], set[int]()
    while pending:
        part = pending.pop()
        if id(part) in visited:
            continue
        visited.add(id(part))
        stage = stage_of(part, stages)
        if stage & Stage.NODE:
            total += RuleCost(per_node=_weight(part, stages, uses))
            pending += () if isinstance(part, _SCALAR_INSIDE) else children(part)
        elif stage is not Stage.CONSTANT:
            total += RuleCost(per_pod=_operations(part, stages, uses))
    return total


def scalar_cost(expr: Expr | None, times: int = 1) -> RuleCost:
    """The same for an expression that is a function of a pod, a victim or a container, and is not evaluated for all nodes
    at once."""
    return RuleCost() if expr is None else RuleCost(per_pod=times * _operations(expr, {}, {}))


_SCALAR_INSIDE = CountPodsOnNode | PodTotal
"""Their conditions are functions of two pods, and part of their weight."""


def _operations(expr: Expr, stages: dict[int, Stage], known: dict[int, int]) -> int:
    """With those of all sub-expressions, shared ones as often as they are used."""
    count = known.get(id(expr))
    if count is None:
        inside = () if isinstance(expr, _SCALAR_INSIDE) else children(expr)
        count = _weight(expr, stages, known) + sum(_operations(part, stages, known) for part in inside)
        known[id(expr)] = count
    return count


def _weight(expr: Expr, stages: dict[int, Stage], known: dict[int, int]) -> int:
    """Of the expression without its sub-expressions."""

    def inside(*parts: Expr | None) -> int:
        return sum(_operations(part, stages, known) for part in parts if part is not None)

    weight = _operation_count(expr)
    match expr:
        case Aggregate():
            weight += repeated_cost(expr)
        case CountPodsOnNode(where=where) if where is not None:
            weight += POD_OF_NODE * (1 + inside(where))
        case PodTotal(where=where, value=value):
            weight += inside(where, value)
        case ListFold(items=items, where=where, value=value) if not stage_of(items, stages) & Stage.NODE:
            by_node = stage_of(expr, stages) & Stage.NODE
            of_element = ELEMENT_OF_POD_BY_NODE if by_node else ELEMENT_OF_POD
            weight += of_element * (1 + inside(where, value))
        case InputRef(is_long_json=True):
            weight += LONG_TEXT_READ
        case In(options=Const(value=tuple() as options)):
            weight += len(options) // CONSTANTS
        case Rank(order=order):
            weight += len(order) // CONSTANTS
        case In(options=options) if stage_of(options, stages) & Stage.NODE:
            weight += TEXT_OF_NODE
        case Bucket() if stage_of(expr, stages) & Stage.NODE:
            weight += TEXT_OF_NODE
        case Split() if not stage_of(expr, stages) & Stage.NODE:
            weight += LONG_TEXT_READ
    return weight


def repeated_cost(aggregate: Aggregate) -> int:
    """The upper bound of operations repeated for each distinct number of a nested aggregate; 0 without one."""
    repeating = {part for part in nested_aggregates(aggregate) if part.body_after_placement is not None}
    if not repeating:
        return 0
    bodies = (aggregate.body, aggregate.body_after_placement or aggregate.body)
    repeated = sum(_dependent_operations(body, repeating, {}) for body in bodies)
    return (repeated + _operation_count(aggregate)) * REPETITIONS_MAX


def _dependent_operations(part: Expr, repeating: set[Aggregate], depends: dict[int, bool]) -> int:
    """The operations of the part that depend on one of the aggregates. `depends` has the parts that are counted already, by
    identity."""
    if id(part) in depends:
        return 0
    if isinstance(part, Aggregate):
        depends[id(part)] = part in repeating
        return 0
    parts = children(part)
    operations = sum([_dependent_operations(child, repeating, depends) for child in parts])
    depends[id(part)] = any(depends[id(child)] for child in parts)
    return operations + (_weight(part, {}, {}) if depends[id(part)] else 0)


def _operation_count(expr: Expr) -> int:
    match expr:
        case Const() | Attr() | InputRef() | MetricRef() | ElementField() | Now():
            return 0
        case And(items=items) | Or(items=items):
            return len(items) - 1
        case In() | Rank() | Bucket() | Split() | Else() | If() | WeeklyWindow():
            return 2
        case StartsWith():
            return 10  # the texts of the nodes can all be different
        case Aggregate(function=function, body_after_placement=after):
            return (8 if function == "stddev" else 3) + (0 if after is None else 3)
        case Call(function="log" | "exp"):
            return 5  # of each node by itself
        case Call(function="normal_cdf"):
            return 20
        case Call(function="beta_cdf"):
            return 110  # up to four hundred steps of a continued fraction, and logarithms
        case CountPodsOnNode(where=where):
            # Each pod of the node is read, and tenants make them all different.
            return 1 if where is None else 100
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
        case FilterRule(condition=condition, template=template):
            return total + expr_cost(condition) + _message_cost(template)
        case ScoreRule(value=value):
            return total + expr_cost(value) + RuleCost(per_node=3)  # normalise, weight, add


def _message_cost(template: object) -> RuleCost:
    """What a message reads of the pod is computed for each pod, whether or not a node is rejected."""
    total = RuleCost()
    for part in template.parts if isinstance(template, MessageTemplate) else ():
        if not isinstance(part, str):
            is_of_node = stage_of(part) & Stage.NODE
            operations = _operations(part, {}, {})
            total += RuleCost(per_pod=operations // SHOWN if is_of_node else operations)
    return total


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
                total += expr_cost(value) if isinstance(value, Expr) else _message_cost(value)
    return total


def statements_cost(
    queue: Iterable[OrderKey],
    gang: GangSpec | None,
    preemption: PreemptionSpec | None,
    states: Iterable[StateSpec],
    quotas: Iterable[QuotaSpec],
    resources: Iterable[ResourceSpec],
    metrics: Iterable[Metric],
    inputs: Iterable[Input],
) -> list[tuple[RuleCost, Span]]:
    """What is evaluated for a pod beside the rules: when it arrives, is placed, or ends."""
    costs = [(scalar_cost(key.value), key.value.span) for key in queue]
    if gang is not None:
        terms = (gang.key, gang.minimum, gang.maximum, gang.timeout, gang.topology, gang.disruption)
        costs += [(scalar_cost(term), term.span) for term in terms if term is not None]
    if preemption is not None:
        of_victims = (preemption.victims, *(key.value for key in preemption.order))
        costs += [(scalar_cost(expr, VICTIM), expr.span) for expr in of_victims if expr is not None]
    for state in states:
        update = (scalar_cost(expr) for expr in (state.key, state.value, state.when))
        costs.append((sum(update, RuleCost(per_pod=3)), state.span))
    costs += [(scalar_cost(quota.key), quota.span) for quota in quotas]
    costs += [(scalar_cost(resource.request, VICTIM), resource.span) for resource in resources]
    costs += [(scalar_cost(metric.assumed_load), metric.span) for metric in metrics]
    costs += [(_input_cost(declared), declared.span) for declared in inputs]
    return costs


def victim_operations(spec: PreemptionSpec) -> int:
    """Whether one pod may be evicted, and its place among the victims."""
    return sum(scalar_cost(expr).per_pod for expr in (spec.victims, *(key.value for key in spec.order)))


def _input_cost(declared: Input) -> RuleCost:
    """Of reading it to see whether it is valid, for each pod or node, also where no rule uses it."""
    if declared.owner == "node":
        return RuleCost(per_node=1)
    return RuleCost(per_pod=1 + (LONG_TEXT_READ if declared.is_long_json else 0))


def policy_cost(rules: RuleSet, layers: tuple[Layer, ...]) -> RuleCost:
    """The upper bound for a pod to which all layers apply."""
    total = sum((rule_cost(rule) for rule in (*rules.filters, *rules.scores)), RuleCost())
    return sum(map(layer_cost, layers), total)
