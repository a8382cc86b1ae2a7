"""What an expression or a rule reads, and so when its answer can change.

Read sets are exact: pods that agree on everything that a policy reads of a pod share one evaluation, and a refused pod
sleeps until one of the events that could turn the refusal. `show` prints the same.
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
    children,
    stage_of,
    walk,
)
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
    """`per_pod`, `namespace`, `per_node`: paths of attributes, the key of a map last (`("labels", "app")`); inputs count as
    what they are read from. `pod_fields` and `node_fields` are whole fields of `model.pods.Pod` and `model.nodes.Node` that
    built-ins read (`usage` and `cluster` among the latter). `counted_pods`: of the pods counted on a node. `time`: the clock,
    so that the answer has a "valid until". `shares`: what namespaces hold, which every placement changes. `cluster_pods`: which pods there are
    at all. `requeue_events`: what could turn a no into a yes.
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
"""The field of a pod that only rules about volumes read."""
_PLACED_POD_EVENTS = frozenset(
    {
        ClusterEvent.NODE_ADD,
        ClusterEvent.ASSIGNED_POD_ADD,
        ClusterEvent.ASSIGNED_POD_UPDATE,
        ClusterEvent.ASSIGNED_POD_DELETE,
    }
)


def expr_reads(expr: Expr | None, inputs: Mapping[str, Input]) -> Reads:
    """Everything that the value depends on."""
    found = NO_READS
    for one in () if expr is None else walk(expr):
        match one:
            case Attr(owner=owner, path=path):
                found |= _attribute_reads(owner, path)
            case InputRef(name=name, owner=of):
                found |= _input_reads(inputs[name], of)
            case MetricRef(name=name):
                found |= Reads(
                    metrics=frozenset({name}),
                    requeue_events=frozenset({ClusterEvent.SAMPLES, ClusterEvent.NODE_ADD}),
                )
            case GangTraffic(name=name):
                found |= Reads(
                    pod=frozenset({("namespace",)}),
                    metrics=frozenset({name}),
                    placed_pods=True,
                    requeue_events=_PLACED_POD_EVENTS | {ClusterEvent.SAMPLES},
                )
            case StateRef():
                found |= Reads(requeue_events=frozenset({ClusterEvent.STATE, ClusterEvent.NODE_ADD}))
            case NotRecovered(condition=watch):
                found |= Reads(
                    metrics=frozenset({watch.metric}),
                    time=True,
                    requeue_events=frozenset(
                        {ClusterEvent.SAMPLES, ClusterEvent.NODE_ADD, ClusterEvent.TIME}
                    ),
                )
            case CountPodsOnNode() | SumPodsOnNode():
                found |= Reads(placed_pods=True, requeue_events=_PLACED_POD_EVENTS)
            case CountPodsInCluster(include_finished=ended):
                wakes = (
                    {ClusterEvent.POD_COUNT, ClusterEvent.FINISHED_POD} if ended else {ClusterEvent.POD_COUNT}
                )
                found |= Reads(cluster_pods=True, requeue_events=frozenset(wakes))
            case Now() | WeeklyWindow():
                found |= Reads(time=True, requeue_events=frozenset({ClusterEvent.TIME}))
            case _:
                pass
    return found


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
            return Reads(counted_pods=paths)  # who counts them says what wakes
        case _:
            return NO_READS  # a victim is looked at when pods are evicted, never before


def _input_reads(one: Input, of: Owner) -> Reads:
    path = tuple(one.source_map.split(".")) if one.source_key is None else (one.source_map, one.source_key)
    return _attribute_reads(one.owner if of == "pod" else of, path)


def rule_reads(rule: Rule, inputs: Mapping[str, Input]) -> Reads:
    """What decides the rule for a node, its `when` included."""
    found = expr_reads(rule.when, inputs)
    match rule:
        case BuiltinFilter(builtin=name, params=params):
            declaration = BUILTINS[name]
            given = dict(params)
            more = [
                one.requeue_events for one in declaration.filter_parameters if given[one.name] != one.default
            ]
            return found | Reads(
                pod_fields=frozenset(declaration.pod_reads),
                node_fields=frozenset(declaration.node_reads),
                requeue_events=declaration.filter_requeue_events.union(*more),
            )
        case BuiltinScore(builtin=name):
            declaration = BUILTINS[name]
            return found | Reads(
                pod_fields=frozenset(declaration.pod_reads), node_fields=frozenset(declaration.node_reads)
            )
        case FilterRule(condition=condition):
            return found | expr_reads(condition, inputs)
        case ScoreRule(value=value):
            return found | expr_reads(value, inputs)


def text_reads(rule: FilterRule, inputs: Mapping[str, Input]) -> Reads:
    """What the rule's text shows: it decides nothing, but pods that differ in it get different texts."""
    found = NO_READS
    for part in () if rule.template is None else rule.template.parts:
        if not isinstance(part, str):
            found |= expr_reads(part, inputs)
    return found


def program_reads(program: Program) -> Reads:
    """What choosing a node depends on: inputs that may refuse, layers' conditions, all rules with and without layers.

    The queue's order and gangs are not part of it: they decide when, not where.
    """
    found = NO_READS
    for one in program.inputs.values():
        if one.required_text is not None or one.invalid_text is not None:
            found |= _input_reads(one, "pod")
    for layer in program.layers:
        found |= expr_reads(layer.condition, program.inputs)
        for change in layer.changes:
            for name in ("rule", "changes"):
                found |= _change_reads(getattr(change, name, None), program.inputs)
    for rule in (*program.rules.filters, *program.rules.scores):
        found |= _rule_and_text_reads(rule, program.inputs)
    return found


def _rule_and_text_reads(rule: Rule, inputs: Mapping[str, Input]) -> Reads:
    """With what its text shows, which wakes nobody."""
    found = rule_reads(rule, inputs)
    return (
        found | replace(text_reads(rule, inputs), requeue_events=frozenset())
        if isinstance(rule, FilterRule)
        else found
    )


def _change_reads(part: object, inputs: Mapping[str, Input]) -> Reads:
    match part:
        case FilterRule() | BuiltinFilter() | ScoreRule() | BuiltinScore():
            return _rule_and_text_reads(part, inputs)
        case tuple():
            found = NO_READS
            for _, value in part:
                if isinstance(value, Expr):
                    found |= expr_reads(value, inputs)
                elif isinstance(value, MessageTemplate):
                    for shown in value.parts:
                        if not isinstance(shown, str):
                            found |= replace(expr_reads(shown, inputs), requeue_events=frozenset())
            return found
        case _:
            return NO_READS


# ── cost ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class RuleCost:
    """Operations once a pod, and once a pod and node. A built-in counts by what its plain meaning looks at."""

    per_pod: int = 0
    per_node: int = 0

    def __add__(self, other: "RuleCost") -> "RuleCost":
        return RuleCost(self.per_pod + other.per_pod, self.per_node + other.per_node)


def expr_cost(expr: Expr | None) -> RuleCost:
    """One for each operation; what depends on the pod alone is done once, constants never, and what a name stands for once, however
    often it is named."""
    total = RuleCost()
    for one in () if expr is None else walk(expr):
        stage = stage_of(one)
        weight = _operation_count(one)
        if isinstance(one, Aggregate):
            weight += _placement_dependent_cost(one)
        if stage & Stage.NODE:
            total += RuleCost(per_node=weight)
        elif stage is not Stage.CONSTANT:
            total += RuleCost(per_pod=weight)
    return total


def _placement_dependent_cost(expr: Aggregate) -> int:
    """What is worked out anew for each number that candidates see of an aggregate in the value: so many at most."""
    moving = {one for one in nested_aggregates(expr) if one.body_after_placement is not None}
    anew = 0
    pending = (
        [expr.body, expr.body if expr.body_after_placement is None else expr.body_after_placement]
        if moving
        else []
    )
    while pending:
        one = pending.pop()
        if not moving.isdisjoint(walk(one)) and one not in moving:
            anew += _operation_count(one)
            pending.extend(children(one))
    return (anew + _operation_count(expr)) * 2**STEP_BITS if moving else 0


def _operation_count(expr: Expr) -> int:
    match expr:
        case Const() | Attr() | InputRef() | MetricRef() | ElementField() | Now():
            return 0
        case And(items=items) | Or(items=items):
            return len(items) - 1
        case In() | Rank() | Else() | If() | WeeklyWindow():
            return 2
        case Aggregate(function=function, body_after_placement=placed):
            return (8 if function == "stddev" else 3) + (0 if placed is None else 3)
        case Call(function="normal_cdf"):
            return 4
        case Call(function="beta_cdf"):
            return 60  # some forty steps of a continued fraction, and logarithms
        case CountPodsOnNode(where=where):
            return 1 if where is None else 8  # each pod of the node is looked at
        case GangTraffic():
            return 8  # each member of the gang is looked at
        case StateRef():
            return 2  # rows are laid out anew when the key's values move
        case CountPodsInCluster():
            return 3  # looked up, as long as the condition compares for equality
        case SumPodsOnNode():
            return 1  # a column that placements keep
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
            return total + expr_cost(value) + RuleCost(per_node=3)  # normalise, weigh, add


def stage_text(stage: Stage) -> str:
    """The stage in words, for listings: `per_pod and node, time`."""
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
