"""Read sets of expressions and rules, and their costs.

Read sets are exact. Pods that agree on everything that a policy reads of a pod share one evaluation, and an
unschedulable pod is requeued only by the events that can change its verdict. `policysched show` prints both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from policysched.builtins.registry import BUILTINS
from policysched.lang.ir.aggregates import STEP_BITS, nested_aggregates
from policysched.lang.ir.attributes import find_attribute
from policysched.lang.ir.declarations import Input
from policysched.lang.ir.expr import (
    Aggregate,
    And,
    Attr,
    Call,
    Const,
    CountPodsInCluster,
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
    NotRecovered,
    Now,
    Or,
    Owner,
    Rank,
    Stage,
    StateRef,
    SumPodsOnNode,
    WeeklyWindow,
)
from policysched.lang.ir.expr_analysis import children, stage_of, walk
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import (
    BuiltinFilter,
    BuiltinScore,
    FilterRule,
    MessageTemplate,
    Rule,
    ScoreRule,
)
from policysched.model.cluster_events import ClusterEvent

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reads:
    """Everything that a value depends on.

    `pod`, `namespace`, `node`: paths of attributes, with the key of a map last (`("labels", "app")`); an input counts as
    the attribute that it is read from. `counted_pods`: paths of the pods counted on a node. `pod_fields` and
    `node_fields`: fields of `model.pods.Pod` and `model.nodes.Node` that built-ins read (for nodes also `usage` and
    `cluster`). `time`: the clock, so that the value has a "valid until". `shares`: resources held by namespaces, which
    every placement changes. `cluster_pods`: the set of pods of the cluster. `requeue_events`: the events that can make a
    rejected pod schedulable.
    """

    pod: frozenset[Path] = frozenset()
    namespace: frozenset[Path] = frozenset()
    node: frozenset[Path] = frozenset()
    counted_pods: frozenset[Path] = frozenset()
    pod_fields: frozenset[str] = frozenset()
    node_fields: frozenset[str] = frozenset()
    metrics: frozenset[str] = frozenset()
    time: bool = False
    shares: bool = False
    placed_pods: bool = False
    cluster_pods: bool = False
    requeue_events: frozenset[ClusterEvent] = frozenset()

    def __or__(self, other: "Reads") -> "Reads":
        return Reads(
            self.pod | other.pod,
            self.namespace | other.namespace,
            self.node | other.node,
            self.counted_pods | other.counted_pods,
            self.pod_fields | other.pod_fields,
            self.node_fields | other.node_fields,
            self.metrics | other.metrics,
            self.time or other.time,
            self.shares or other.shares,
            self.placed_pods or other.placed_pods,
            self.cluster_pods or other.cluster_pods,
            self.requeue_events | other.requeue_events,
        )


NO_READS = Reads()
CLAIMS_FIELD = "claims"
"""The pod field that only volume rules read."""
_PLACED_POD_EVENTS = frozenset(
    {
        ClusterEvent.NODE_ADD,
        ClusterEvent.ASSIGNED_POD_ADD,
        ClusterEvent.ASSIGNED_POD_UPDATE,
        ClusterEvent.ASSIGNED_POD_DELETE,
    }
)


def expr_reads(expr: Expr | None, inputs: Mapping[str, Input]) -> Reads:
    reads = NO_READS
    for part in () if expr is None else walk(expr):
        match part:
            case Attr(owner=owner, path=path):
                reads |= _attribute_reads(owner, path)
            case InputRef(name=name, owner=owner):
                reads |= _input_reads(inputs[name], owner)
            case MetricRef(name=name):
                reads |= Reads(
                    metrics=frozenset({name}),
                    requeue_events=frozenset({ClusterEvent.SAMPLES, ClusterEvent.NODE_ADD}),
                )
            case GangTraffic(name=name):
                reads |= Reads(
                    pod=frozenset({("namespace",)}),
                    metrics=frozenset({name}),
                    placed_pods=True,
                    requeue_events=_PLACED_POD_EVENTS | {ClusterEvent.SAMPLES},
                )
            case StateRef():
                reads |= Reads(requeue_events=frozenset({ClusterEvent.STATE, ClusterEvent.NODE_ADD}))
            case NotRecovered(condition=condition):
                reads |= Reads(
                    metrics=frozenset({condition.metric}),
                    time=True,
                    requeue_events=frozenset(
                        {ClusterEvent.SAMPLES, ClusterEvent.NODE_ADD, ClusterEvent.TIME}
                    ),
                )
            case CountPodsOnNode() | SumPodsOnNode():
                reads |= Reads(placed_pods=True, requeue_events=_PLACED_POD_EVENTS)
            case CountPodsInCluster(include_finished=include_finished):
                events = {ClusterEvent.POD_COUNT}
                if include_finished:
                    events.add(ClusterEvent.FINISHED_POD)
                reads |= Reads(cluster_pods=True, requeue_events=frozenset(events))
            case Now() | WeeklyWindow():
                reads |= Reads(time=True, requeue_events=frozenset({ClusterEvent.TIME}))
            case _:
                pass
    return reads


def _attribute_reads(owner: str, path: Path) -> Reads:
    paths = frozenset({path})
    match owner:
        case "pod":
            row = find_attribute("pod", path)
            return Reads(pod=paths, time=bool(row.stage & Stage.TIME), requeue_events=row.requeue_events)
        case "namespace":
            row = find_attribute("namespace", path)
            return Reads(
                namespace=paths,
                shares=bool(row.stage & Stage.NAMESPACE_SHARES),
                requeue_events=row.requeue_events,
            )
        case "node":
            return Reads(node=paths, requeue_events=find_attribute("node", path).requeue_events)
        case "other":
            return Reads(counted_pods=paths)  # the requeue events come from the counting expression
        case _:
            return NO_READS  # victims are read only during preemption


def _input_reads(input_: Input, owner: Owner) -> Reads:
    if input_.source_key is None:
        path = tuple(input_.source_map.split("."))
    else:
        path = (input_.source_map, input_.source_key)
    return _attribute_reads(input_.owner if owner == "pod" else owner, path)


def rule_reads(rule: Rule, inputs: Mapping[str, Input]) -> Reads:
    """Everything that the rule's verdict or score depends on, including its `when`."""
    reads = expr_reads(rule.when, inputs)
    match rule:
        case BuiltinFilter(builtin=name, params=params):
            declaration = BUILTINS[name]
            values = dict(params)
            parameter_events = [
                parameter.requeue_events
                for parameter in declaration.filter_parameters
                if values[parameter.name] != parameter.default
            ]
            return reads | Reads(
                pod_fields=frozenset(declaration.pod_reads),
                node_fields=frozenset(declaration.node_reads),
                requeue_events=declaration.filter_requeue_events.union(*parameter_events),
            )
        case BuiltinScore(builtin=name):
            declaration = BUILTINS[name]
            return reads | Reads(
                pod_fields=frozenset(declaration.pod_reads), node_fields=frozenset(declaration.node_reads)
            )
        case FilterRule(condition=condition):
            return reads | expr_reads(condition, inputs)
        case ScoreRule(value=value):
            return reads | expr_reads(value, inputs)


def text_reads(rule: FilterRule, inputs: Mapping[str, Input]) -> Reads:
    """Everything that the rule's message depends on. It changes no verdict, but pods that differ in it get different messages."""
    reads = NO_READS
    for part in () if rule.template is None else rule.template.parts:
        if not isinstance(part, str):
            reads |= expr_reads(part, inputs)
    return reads


def program_reads(program: Program) -> Reads:
    """Everything that the choice of a node depends on: inputs that can reject, conditions of layers, and all rules with
    and without layers. Queue order and gangs are excluded; they decide when a pod is scheduled, not where.
    """
    reads = NO_READS
    for input_ in program.inputs.values():
        if input_.required_text is not None or input_.invalid_text is not None:
            reads |= _input_reads(input_, "pod")
    for layer in program.layers:
        reads |= expr_reads(layer.condition, program.inputs)
        for change in layer.changes:
            for name in ("rule", "changes"):
                reads |= _change_reads(getattr(change, name, None), program.inputs)
    for rule in (*program.rules.filters, *program.rules.scores):
        reads |= _rule_and_text_reads(rule, program.inputs)
    return reads


def _rule_and_text_reads(rule: Rule, inputs: Mapping[str, Input]) -> Reads:
    """The reads of the rule and of its message; the message causes no requeue."""
    reads = rule_reads(rule, inputs)
    return (
        reads | replace(text_reads(rule, inputs), requeue_events=frozenset())
        if isinstance(rule, FilterRule)
        else reads
    )


def _change_reads(part: object, inputs: Mapping[str, Input]) -> Reads:
    match part:
        case FilterRule() | BuiltinFilter() | ScoreRule() | BuiltinScore():
            return _rule_and_text_reads(part, inputs)
        case tuple():
            reads = NO_READS
            for _, value in part:
                if isinstance(value, Expr):
                    reads |= expr_reads(value, inputs)
                elif isinstance(value, MessageTemplate):
                    for placeholder in value.parts:
                        if not isinstance(placeholder, str):
                            reads |= replace(expr_reads(placeholder, inputs), requeue_events=frozenset())
            return reads
        case _:
            return NO_READS


# ── cost ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class RuleCost:
    """Operations for each pod, and for each pod and node. A built-in counts the values that its definition reads."""

    per_pod: int = 0
    per_node: int = 0

    def __add__(self, other: "RuleCost") -> "RuleCost":
        return RuleCost(self.per_pod + other.per_pod, self.per_node + other.per_node)


def expr_cost(expr: Expr | None) -> RuleCost:
    """The number of operations: those that depend only on the pod count per pod, constants do not count, and a `let`
    counts once however often it is used."""
    total = RuleCost()
    for part in () if expr is None else walk(expr):
        stage = stage_of(part)
        weight = _operation_count(part)
        if isinstance(part, Aggregate):
            weight += _placement_dependent_cost(part)
        if stage & Stage.NODE:
            total += RuleCost(per_node=weight)
        elif stage is not Stage.CONSTANT:
            total += RuleCost(per_pod=weight)
    return total


def _placement_dependent_cost(expr: Aggregate) -> int:
    """The upper bound of operations repeated for each distinct number of a nested aggregate."""
    moving = {part for part in nested_aggregates(expr) if part.body_after_placement is not None}
    repeated = 0
    pending = (
        [expr.body, expr.body if expr.body_after_placement is None else expr.body_after_placement]
        if moving
        else []
    )
    while pending:
        part = pending.pop()
        if not moving.isdisjoint(walk(part)) and part not in moving:
            repeated += _operation_count(part)
            pending.extend(children(part))
    return (repeated + _operation_count(expr)) * 2**STEP_BITS if moving else 0


def _operation_count(expr: Expr) -> int:
    match expr:
        case Const() | Attr() | InputRef() | MetricRef() | ElementField() | Now():
            return 0
        case And(items=items) | Or(items=items):
            return len(items) - 1
        case In() | Rank() | Else() | If() | WeeklyWindow():
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
        case CountPodsInCluster():
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


def stage_text(stage: Stage) -> str:
    """The stage for listings: `pod and node, time`."""
    place = {
        Stage.CONSTANT: "constant",
        Stage.POD: "pod",
        Stage.NODE: "node",
        Stage.POD | Stage.NODE: "pod and node",
    }[stage & (Stage.POD | Stage.NODE)]
    if stage & Stage.NAMESPACE_SHARES:
        place = f"{place}, shares"
    if stage & Stage.CLUSTER_PODS:
        place = f"{place}, pods"
    if stage & Stage.CANDIDATES:
        place = f"{place}, candidates"
    if stage & Stage.TIME:
        return "time" if place == "constant" else f"{place}, time"
    return place
