"""Read sets of expressions and rules.

Read sets are exact. Pods that agree on everything that a policy reads of a pod share one evaluation, and an
unschedulable pod is requeued only by the events that can change its verdict. `policysched show` prints both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from policysched.builtins.registry import BUILTINS
from policysched.lang.ir.attributes import find_attribute
from policysched.lang.ir.declarations import Input
from policysched.lang.ir.expr import (
    Attr,
    CountPodsOnNode,
    Expr,
    GangTraffic,
    InputRef,
    MetricRef,
    NotRecovered,
    Now,
    Owner,
    PodTotal,
    Stage,
    StateRef,
    SumPodsOnNode,
    WeeklyWindow,
)
from policysched.lang.ir.expr_analysis import walk
from policysched.lang.ir.layers import Layer
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
    the attribute that it is read from. `counted_pods`: paths of the pods that are counted. `pod_fields` and
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

_EVENTS_OF_COUNTED_PODS = frozenset({ClusterEvent.NODE_LABEL, ClusterEvent.POD_READY})


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
            case StateRef(decays=decays):
                changes = {ClusterEvent.STATE, ClusterEvent.NODE_ADD}
                reads |= Reads(requeue_events=frozenset(changes | {ClusterEvent.TIME} if decays else changes))
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
            case PodTotal(topology_key=None):
                reads |= Reads(cluster_pods=True, requeue_events=_pod_total_events(part))
            case PodTotal(topology_key=str() as key):
                reads |= Reads(
                    node=frozenset({("labels", key)}),
                    placed_pods=True,
                    requeue_events=_pod_total_events(part) | {ClusterEvent.NODE_LABEL},
                )
            case Now() | WeeklyWindow():
                reads |= Reads(time=True, requeue_events=frozenset({ClusterEvent.TIME}))
            case _:
                pass
    return reads


def _pod_total_events(total: PodTotal) -> frozenset[ClusterEvent]:
    match total.scope:
        case "active":
            return frozenset({ClusterEvent.POD_COUNT})
        case "all":
            return frozenset({ClusterEvent.POD_COUNT, ClusterEvent.FINISHED_POD})
        case "placed":  # a node that is deleted takes its pods along
            return _PLACED_POD_EVENTS | {ClusterEvent.NODE_DELETE}


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
            # Other requeue events come from the counting expression.
            events = find_attribute("other", path).requeue_events & _EVENTS_OF_COUNTED_PODS
            return Reads(counted_pods=paths, requeue_events=events)
        case (
            _
        ):  # victims are read only during preemption; of what can change, shares and readiness are followed
            row = find_attribute("victim", path)
            is_share = path[1:2] == ("share",)
            events = row.requeue_events if is_share else row.requeue_events & {ClusterEvent.POD_READY}
            return Reads(requeue_events=events)


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


def union_of(reads: Sequence[Reads]) -> Reads:
    """By halves, as the sets grow."""
    if len(reads) <= 1:
        return reads[0] if reads else NO_READS
    middle = len(reads) // 2
    return union_of(reads[:middle]) | union_of(reads[middle:])


def layer_reads(layer: Layer, inputs: Mapping[str, Input]) -> Reads:
    """What the rules and fields that the layer brings read, with their messages."""
    return union_of(
        [
            _change_reads(getattr(change, name, None), inputs)
            for change in layer.changes
            for name in ("rule", "changes")
        ]
    )


def program_reads(program: Program) -> Reads:
    """Everything that the choice of a node depends on: inputs that can reject, conditions of layers, and all rules with
    and without layers. Queue order and gangs are excluded; they decide when a pod is scheduled, not where.
    """
    reads = NO_READS
    for input_ in program.inputs.values():
        if input_.required_text is not None or input_.invalid_text is not None:
            reads |= _input_reads(input_, "pod")
    for layer in program.layers:
        reads |= expr_reads(layer.condition, program.inputs) | layer_reads(layer, program.inputs)
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


def stage_text(stage: Stage) -> str:
    """The stage for listings: `pod and node, time`."""
    text = {
        Stage.CONSTANT: "constant",
        Stage.POD: "pod",
        Stage.NODE: "node",
        Stage.POD | Stage.NODE: "pod and node",
    }[stage & (Stage.POD | Stage.NODE)]
    if stage & Stage.NAMESPACE_SHARES:
        text = f"{text}, shares"
    if stage & Stage.CLUSTER_PODS:
        text = f"{text}, pods"
    if stage & Stage.CANDIDATES:
        text = f"{text}, candidates"
    if stage & Stage.TIME:
        return "time" if text == "constant" else f"{text}, time"
    return text
