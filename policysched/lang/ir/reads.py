"""What an expression or a rule reads, and so when its answer can change.

Read sets are exact: pods that agree on everything that a policy reads of a pod share one evaluation, and a refused pod
sleeps until one of the events that could turn the refusal. `show` prints the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from policysched.builtins.registry import BUILTINS
from policysched.lang.ir.aggregates import STEP_BITS, seen_by_all
from policysched.lang.ir.attributes import attribute_of
from policysched.lang.ir.expr import (
    Aggregate,
    And,
    Attr,
    Call,
    Const,
    CountAnywhere,
    CountPods,
    Element,
    Else,
    Expr,
    Fold,
    Held,
    If,
    In,
    InputRef,
    MetricRef,
    Now,
    Or,
    Owner,
    Rank,
    Stage,
    StateRef,
    SumPods,
    TrafficTo,
    Window,
    children,
    stage_of,
    walk,
)
from policysched.lang.ir.program import (
    BuiltinFilter,
    BuiltinScore,
    FilterRule,
    Input,
    Program,
    Rule,
    ScoreRule,
    Template,
)
from policysched.model.cluster_events import ClusterEvent

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reads:
    """`pod`, `namespace`, `node`: paths of attributes, the key of a map last (`("labels", "app")`); inputs count as
    what they are read from. `pod_fields` and `node_fields` are whole fields of `model.objects.Pod` and `model.objects.Node` that
    built-ins read (`usage` and `cluster` among the latter). `others`: of the pods counted on a node. `time`: the clock,
    so that the answer has a "valid until". `shares`: what namespaces hold, which every placement changes. `anywhere`: which pods there are
    at all. `wakes`: what could turn a no into a yes.
    """

    pod: frozenset[Path] = frozenset()
    namespace: frozenset[Path] = frozenset()
    node: frozenset[Path] = frozenset()
    others: frozenset[Path] = frozenset()
    pod_fields: frozenset[str] = frozenset()
    node_fields: frozenset[str] = frozenset()
    metrics: frozenset[str] = frozenset()
    time: bool = False
    shares: bool = False
    counts_pods: bool = False
    anywhere: bool = False
    wakes: frozenset[ClusterEvent] = frozenset()

    def __or__(self, other: "Reads") -> "Reads":
        return Reads(
            self.pod | other.pod,
            self.namespace | other.namespace,
            self.node | other.node,
            self.others | other.others,
            self.pod_fields | other.pod_fields,
            self.node_fields | other.node_fields,
            self.metrics | other.metrics,
            self.time or other.time,
            self.shares or other.shares,
            self.counts_pods or other.counts_pods,
            self.anywhere or other.anywhere,
            self.wakes | other.wakes,
        )


NOTHING = Reads()
CLAIMS = "claims"
"""The field of a pod that only rules about volumes read."""
_PLACED = frozenset(
    {
        ClusterEvent.NODE_ADD,
        ClusterEvent.ASSIGNED_POD_ADD,
        ClusterEvent.ASSIGNED_POD_UPDATE,
        ClusterEvent.ASSIGNED_POD_DELETE,
    }
)


def reads_of(expr: Expr | None, inputs: Mapping[str, Input]) -> Reads:
    """Everything that the value depends on."""
    found = NOTHING
    for one in () if expr is None else walk(expr):
        match one:
            case Attr(owner=owner, path=path):
                found |= _attribute(owner, path)
            case InputRef(name=name, of=of):
                found |= _input(inputs[name], of)
            case MetricRef(name=name):
                found |= Reads(
                    metrics=frozenset({name}), wakes=frozenset({ClusterEvent.SAMPLES, ClusterEvent.NODE_ADD})
                )
            case TrafficTo(name=name):
                found |= Reads(
                    pod=frozenset({("namespace",)}),
                    metrics=frozenset({name}),
                    counts_pods=True,
                    wakes=_PLACED | {ClusterEvent.SAMPLES},
                )
            case StateRef():
                found |= Reads(wakes=frozenset({ClusterEvent.STATE, ClusterEvent.NODE_ADD}))
            case Held(watch=watch):
                found |= Reads(
                    metrics=frozenset({watch.metric}),
                    time=True,
                    wakes=frozenset({ClusterEvent.SAMPLES, ClusterEvent.NODE_ADD, ClusterEvent.TIME}),
                )
            case CountPods() | SumPods():
                found |= Reads(counts_pods=True, wakes=_PLACED)
            case CountAnywhere(ended=ended):
                wakes = (
                    {ClusterEvent.POD_COUNT, ClusterEvent.ENDED_POD} if ended else {ClusterEvent.POD_COUNT}
                )
                found |= Reads(anywhere=True, wakes=frozenset(wakes))
            case Now() | Window():
                found |= Reads(time=True, wakes=frozenset({ClusterEvent.TIME}))
            case _:
                pass
    return found


def _attribute(owner: str, path: Path) -> Reads:
    paths = frozenset({path})
    match owner:
        case "pod":
            row = attribute_of("pod", path)
            return Reads(pod=paths, time=bool(row.stage & Stage.TIME), wakes=row.wakes)
        case "namespace":
            row = attribute_of("namespace", path)
            return Reads(namespace=paths, shares=bool(row.stage & Stage.SHARES), wakes=row.wakes)
        case "node":
            return Reads(node=paths, wakes=attribute_of("node", path).wakes)
        case "other":
            return Reads(others=paths)  # who counts them says what wakes
        case _:
            return NOTHING  # a victim is looked at when pods are evicted, never before


def _input(one: Input, of: Owner) -> Reads:
    path = tuple(one.source_map.split(".")) if one.source_key is None else (one.source_map, one.source_key)
    return _attribute(one.owner if of == "pod" else of, path)


def rule_reads(rule: Rule, inputs: Mapping[str, Input]) -> Reads:
    """What decides the rule for a node, its `when` included."""
    found = reads_of(rule.when, inputs)
    match rule:
        case BuiltinFilter(builtin=name, params=params):
            declaration = BUILTINS[name]
            given = dict(params)
            more = [one.wakes for one in declaration.filter_parameters if given[one.name] != one.default]
            return found | Reads(
                pod_fields=frozenset(declaration.pod_reads),
                node_fields=frozenset(declaration.node_reads),
                wakes=declaration.filter_wakes.union(*more),
            )
        case BuiltinScore(builtin=name):
            declaration = BUILTINS[name]
            return found | Reads(
                pod_fields=frozenset(declaration.pod_reads), node_fields=frozenset(declaration.node_reads)
            )
        case FilterRule(condition=condition):
            return found | reads_of(condition, inputs)
        case ScoreRule(value=value):
            return found | reads_of(value, inputs)


def text_reads(rule: FilterRule, inputs: Mapping[str, Input]) -> Reads:
    """What the rule's text shows: it decides nothing, but pods that differ in it get different texts."""
    found = NOTHING
    for part in () if rule.template is None else rule.template.parts:
        if not isinstance(part, str):
            found |= reads_of(part, inputs)
    return found


def program_reads(program: Program) -> Reads:
    """What choosing a node depends on: inputs that may refuse, layers' conditions, all rules with and without layers.

    The queue's order and gangs are not part of it: they decide when, not where.
    """
    found = NOTHING
    for one in program.inputs.values():
        if one.required_text is not None or one.invalid_text is not None:
            found |= _input(one, "pod")
    for layer in program.layers:
        found |= reads_of(layer.condition, program.inputs)
        for change in layer.changes:
            for name in ("rule", "changes"):
                found |= _change_reads(getattr(change, name, None), program.inputs)
    for rule in (*program.rules.filters, *program.rules.scores):
        found |= _shown_reads(rule, program.inputs)
    return found


def _shown_reads(rule: Rule, inputs: Mapping[str, Input]) -> Reads:
    """With what its text shows, which wakes nobody."""
    found = rule_reads(rule, inputs)
    return (
        found | replace(text_reads(rule, inputs), wakes=frozenset())
        if isinstance(rule, FilterRule)
        else found
    )


def _change_reads(part: object, inputs: Mapping[str, Input]) -> Reads:
    match part:
        case FilterRule() | BuiltinFilter() | ScoreRule() | BuiltinScore():
            return _shown_reads(part, inputs)
        case tuple():
            found = NOTHING
            for _, value in part:
                if isinstance(value, Expr):
                    found |= reads_of(value, inputs)
                elif isinstance(value, Template):
                    for shown in value.parts:
                        if not isinstance(shown, str):
                            found |= replace(reads_of(shown, inputs), wakes=frozenset())
            return found
        case _:
            return NOTHING


# ── cost ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Cost:
    """Operations once a pod, and once a pod and node. A built-in counts by what its plain meaning looks at."""

    pod: int = 0
    node: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.pod + other.pod, self.node + other.node)


def cost_of(expr: Expr | None) -> Cost:
    """One for each operation; what depends on the pod alone is done once, constants never, and what a name stands for once, however
    often it is named."""
    total = Cost()
    for one in () if expr is None else walk(expr):
        stage = stage_of(one)
        weight = _operations(one)
        if isinstance(one, Aggregate):
            weight += _told_apart(one)
        if stage & Stage.NODE:
            total += Cost(node=weight)
        elif stage is not Stage.CONSTANT:
            total += Cost(pod=weight)
    return total


def _told_apart(expr: Aggregate) -> int:
    """What is worked out anew for each number that candidates see of an aggregate in the value: so many at most."""
    moving = {one for one in seen_by_all(expr) if one.placed is not None}
    anew = 0
    pending = [expr.body, expr.body if expr.placed is None else expr.placed] if moving else []
    while pending:
        one = pending.pop()
        if not moving.isdisjoint(walk(one)) and one not in moving:
            anew += _operations(one)
            pending.extend(children(one))
    return (anew + _operations(expr)) * 2**STEP_BITS if moving else 0


def _operations(expr: Expr) -> int:
    match expr:
        case Const() | Attr() | InputRef() | MetricRef() | Element() | Now():
            return 0
        case And(items=items) | Or(items=items):
            return len(items) - 1
        case In() | Rank() | Else() | If() | Window():
            return 2
        case Aggregate(function=function, placed=placed):
            return (8 if function == "stddev" else 3) + (0 if placed is None else 3)
        case Call(function="normal_cdf"):
            return 4
        case Call(function="beta_cdf"):
            return 60  # some forty steps of a continued fraction, and logarithms
        case CountPods(where=where):
            return 1 if where is None else 8  # each pod of the node is looked at
        case TrafficTo():
            return 8  # each member of the gang is looked at
        case StateRef():
            return 2  # rows are laid out anew when the key's values move
        case CountAnywhere():
            return 3  # looked up, as long as the condition compares for equality
        case SumPods():
            return 1  # a column that placements keep
        case Fold():
            return 8  # each element of the list
        case _:
            return 1


def rule_cost(rule: Rule) -> Cost:
    total = cost_of(rule.when)
    match rule:
        case BuiltinFilter(builtin=name) | BuiltinScore(builtin=name):
            return total + Cost(node=BUILTINS[name].cost)
        case FilterRule(condition=condition):
            return total + cost_of(condition)
        case ScoreRule(value=value):
            return total + cost_of(value) + Cost(node=3)  # normalise, weigh, add


def stage_word(stage: Stage) -> str:
    """The stage in words, for listings: `pod and node, time`."""
    place = {
        Stage.CONSTANT: "constant",
        Stage.POD: "pod",
        Stage.NODE: "node",
        Stage.POD | Stage.NODE: "pod and node",
    }[stage & (Stage.POD | Stage.NODE)]
    if stage & Stage.SHARES:
        place = f"{place}, shares"
    if stage & Stage.PODS:
        place = f"{place}, pods"
    if stage & Stage.CANDIDATES:
        place = f"{place}, candidates"
    if stage & Stage.TIME:
        return "time" if place == "constant" else f"{place}, time"
    return place
