"""A checked policy: every name resolved, every type known, constants folded, includes and changes applied.

This is the seam of the project. The checker makes a `Program` (or diagnostics, never both with an error), `oracle`
says what it means, `plan` makes it fast, `schedule` asks it for order, gangs and rules.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

from policysched.lang.ir.expr import Const, Expr, Stage
from policysched.lang.types.kinds import BOOL, DURATION, INT, STRING, RecordType, RecordTypeField, Type
from policysched.text import Span

BuiltinParamValue = (
    bool | int | float | str | tuple[tuple[str, int], ...] | tuple[tuple[int, int], ...] | frozenset[str]
)
"""A built-in's parameter after checking: an enum is its word, a map its entries in the order written."""


# ── parameters, inputs and metrics ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Parameter:
    """A constant that the operator may set without touching the policy: `param NAME: TYPE = DEFAULT range LOW..HIGH`.

    `value` is what the program was made with, everywhere in it already. `set_in` names where it was set
    (`ConfigMap ... key ...`, `settings`, `--param`); empty where nobody did and `value` is `default`.
    """

    name: str
    value: Const
    default: Const
    low: Const | None
    high: Const | None
    choices: tuple[Const, ...]
    set_in: str
    span: Span = field(compare=False)

    @property
    def type(self) -> Type:
        return self.value.type


@dataclass(frozen=True, slots=True)
class Input:
    """A string of the pod, the node or the namespace, read as a typed value.

    The source is `source_map[source_key]` of `owner` (`labels`, `annotations`), or for a plain string attribute such
    as `pod.service_account` the attribute itself with `source_key` None.

    Absent: `default` where there is one; else missing if `type.optional`; else `required_text` refuses the pod (a pod
    or namespace input) or the node. Present but not of the type: `invalid_text` refuses likewise, or with
    `invalid_default` it counts as absent. `unit` multiplies a bare number (`unit_factor`, in the held unit).

    With `json_path` the source is JSON, and the value what the path of names leads to; where it leads to nothing, the value is absent.
    """

    name: str
    type: Type
    owner: Literal["pod", "node", "namespace"]
    source_map: str
    source_key: str | None
    json_path: str | None
    unit: str | None
    default: Const | None
    required_text: str | None
    invalid_text: str | None
    invalid_default: bool
    span: Span = field(compare=False)

    @property
    def stage(self) -> Stage:
        return Stage.NODE if self.owner == "node" else Stage.POD


@dataclass(frozen=True, slots=True)
class PairJoinSpec:
    """How series say which two pods they are of. `sender` and `receiver` are labels of the series: two, of which the first
    has the namespace and the second the pod; or one that has both, as `namespace/pod`. `pod_key` is what a pod of that namespace
    is called there, a string of the pod."""

    sender: tuple[str, ...]
    receiver: tuple[str, ...]
    pod_key: Expr


@dataclass(frozen=True, slots=True)
class Metric:
    """A number a node from outside, or with a join `PairJoinSpec` one for two pods. `unit` is what the samples come in; they are
    converted once, on arrival.

    `join` is `node`, `instance`, a pair (series label, node label), or `PairJoinSpec`. Durations in ns. `assumed_load` is added to a node
    for each pod bound since its last sample; between two pods it stands where the samples do not know one of them.
    """

    name: str
    type: Type
    source: str | None
    query: str
    unit: str
    join: str | tuple[str, str] | PairJoinSpec
    poll_interval_ns: int
    stale_after_ns: int
    sampled_at: str | None
    assumed_load: Expr | None
    span: Span = field(compare=False)


def is_node_metric(metric: Metric) -> bool:
    """Whether it has a value for each node, and not for two pods."""
    return not isinstance(metric.join, PairJoinSpec)


StateTrigger = Literal["started", "terminated", "either", "failed", "any"]


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A value for each key and node, fed by what the containers of this policy's pods do: `v <- keep * v + (1 - keep) * value`.

    `pod_key` is a string of the pod, `value` a number of the pod and of the container (`CONTAINER_RECORD`), and nothing is fed where `when`
    does not hold. With `scope` cluster there is one value for each key, the same on all nodes. `entries_max` is how many values are
    held at once (a key on a node is one); beyond that the one that was fed the longest ago goes, and is `start` again.
    """

    name: str
    type: Type
    scope: Literal["node", "cluster"]
    key: Expr
    trigger: StateTrigger
    when: Expr | None
    value: Expr
    keep: float
    start: float
    entries_max: int
    span: Span = field(compare=False)


CONTAINER_RECORD = RecordType(
    "container",
    (
        RecordTypeField("name", STRING, "name", None, None),
        RecordTypeField("terminated", BOOL, "terminated", None, None),
        RecordTypeField("exit_code", INT, "exit_code", None, None),
        RecordTypeField("reason", STRING, "reason", None, None),
        RecordTypeField("ran", DURATION, "ran", None, None),
        RecordTypeField("restarts", INT, "restarts", None, None),
        RecordTypeField("down", replace(DURATION, optional=True), "down", None, None),
        RecordTypeField("pod_failed", BOOL, "pod_failed", None, None),
    ),
)
"""What the value of a state may read of the container that started or terminated, in the order in which it is fed."""


@dataclass(frozen=True, slots=True)
class ResourceSpec:
    """A quantity of the policy's own, accounted at assume like cpu: `capacity` of the node, `request` of the pod alone."""

    name: str
    type: Type
    capacity: Expr
    request: Expr
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class OutageSpec:
    """While more than `missing_ratio_max` (0..1) of the candidates lack a metric, the rules that read it do not apply (`disable`), or
    pods to which one of them applies wait (`wait`)."""

    missing_ratio_max: float
    action: Literal["disable", "wait"]


# ── rules ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class MessageTemplate:
    """`receiving {net_rx}, over {hot_link}`: texts and values in turn. `text` is it as written."""

    text: str
    parts: tuple[str | Expr, ...]


@dataclass(frozen=True, slots=True)
class FilterRule:
    """A filter written in the policy.

    A node passes where `when` is not True (False, or missing), or where the condition is True (`rejects`: is not
    True). Where the condition is missing, `missing` decides; None stands where it cannot be missing, or where an
    absent node label in a `reject` does not reject.
    """

    name: str
    when: Expr | None
    rejects: bool
    condition: Expr
    missing: Literal["reject", "pass"] | None
    scaleup: bool  # False: a new, empty node of the same kind would not help
    template: MessageTemplate | None
    locked: bool
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class BuiltinFilter:
    """One of kube-scheduler's filters by its plugin's name in snake case. `params` are complete, defaults included."""

    name: str
    builtin: str
    params: tuple[tuple[str, BuiltinParamValue], ...]
    when: Expr | None
    locked: bool
    span: Span = field(compare=False)


class Direction(Enum):
    LOWER = "lower"
    HIGHER = "higher"
    PREFER = "prefer"


@dataclass(frozen=True, slots=True)
class RangeNormalize:
    """`floor(100 * (x - lo) / (hi - lo))`, clamped to 0..100; lower is 100 less that. In the value's held unit."""

    low: int | float
    high: int | float


@dataclass(frozen=True, slots=True)
class MaxNormalize:
    """higher `floor(100 * x / max)`, lower 100 less that; a maximum of 0 (or less) gives higher 0, lower 100."""


@dataclass(frozen=True, slots=True)
class MinMaxNormalize:
    """`floor(100 * (x - min) / (max - min))` over the candidates; a span of 0 gives 100; lower is 100 less that."""


Normalize = RangeNormalize | MaxNormalize | MinMaxNormalize


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """A score written in the policy: whole numbers 0..100 a node, times `weight`.

    `when` not True: 0 for every node. `normalize` is None for `prefer` (a boolean: 100 or 0). `missing` is a fixed
    score, or `neutral`: the floor of the mean score of the candidates that have it, 50 where none has; `worst` is 0
    and `best` 100, already replaced. None where the value cannot be missing.
    """

    name: str
    weight: int
    when: Expr | None
    direction: Direction
    value: Expr
    normalize: Normalize | None
    missing: int | Literal["neutral"] | None
    locked: bool
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class BuiltinScore:
    name: str
    builtin: str
    weight: int
    params: tuple[tuple[str, BuiltinParamValue], ...]
    when: Expr | None
    locked: bool
    span: Span = field(compare=False)


Rule = FilterRule | BuiltinFilter | ScoreRule | BuiltinScore


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Filters and scores in the order of the file. A name is unique among filters and among scores."""

    filters: tuple[FilterRule | BuiltinFilter, ...]
    scores: tuple[ScoreRule | BuiltinScore, ...]


# ── layers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class SetRule:
    """Put a rule where one of its kind and name stands, or at the end: a new rule, a `replace`, an `amend` without
    conflicts (already resolved against the rules below it)."""

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
    """Replace single fields of the rule that stands there when the layer applies (an earlier layer may have changed
    it). `changes` are pairs of a field of the rule's class and its new value."""

    name: str
    kind: Literal["filter", "score"]
    changes: tuple[tuple[str, object], ...]


LayerChange = SetRule | SetWeight | DropRule | AmendRule


@dataclass(frozen=True, slots=True)
class Layer:
    """Changes for the pods for which `condition` (pod and namespace only) is True. A change whose rule an earlier
    layer dropped does nothing."""

    name: str
    condition: Expr
    changes: tuple[LayerChange, ...]
    span: Span = field(compare=False)


# ── order, gangs, preemption ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class OrderKey:
    """One key of the queue's order. A missing value comes behind all others, whichever the direction."""

    value: Expr
    descending: bool


class OnTimeout(Enum):
    REQUEUE = "requeue"
    FAIL = "fail"
    BEST_EFFORT = "best_effort"


class GangMode(Enum):
    WHOLE = "whole"
    GATE = "gate"


@dataclass(frozen=True, slots=True)
class GangSpec:
    """`key` missing: the pod is in no gang. `minimum`, `maximum` are int expressions of the pod; `timeout_ns` too
    (None: never). `topology_key` is the key of a label that all nodes of one gang have to agree on."""

    key: Expr
    minimum: Expr
    maximum: Expr | None
    timeout: Expr | None
    on_timeout: OnTimeout
    mode: GangMode
    topology_key: str | None
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Extender:
    """A service that is asked after the filters, by the name that the settings have for it. `weight` None: what it
    scores does not count. `missing` is the score of a node that it has none for, as in `ScoreRule`; None without a
    weight."""

    name: str
    weight: int | None
    missing: int | Literal["neutral"] | None
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class PreemptionSpec:
    """Whose pods may be evicted: nobody's, our own of lower priority, any of lower priority, or where `victims`
    holds for the victim (and its priority is lower)."""

    mode: Literal["never", "own", "any", "where"]
    victims: Expr | None


# ── the whole ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Program:
    """A policy that checked.

    `name` is the schedulerName. `sha256` (hex) is the hash of the expanded, formatted text, so that a comment changes
    nothing; `text` is that expanded text, from which alone the same Program can be made again (the last known good is
    kept in this form). `queue` is complete without the pod's UID, which closes the order. The text has the values of the parameters as their
    defaults, so that it and the hash cover what was set elsewhere.
    """

    name: str
    version: int
    sha256: str
    text: str
    inputs: Mapping[str, Input]
    metrics: Mapping[str, Metric]
    outage: OutageSpec | None
    queue: tuple[OrderKey, ...]
    gang: GangSpec | None
    rules: RuleSet
    layers: tuple[Layer, ...]
    preemption: PreemptionSpec
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    resources: Mapping[str, ResourceSpec] = field(default_factory=dict)
    extenders: tuple[Extender, ...] = ()
    states: Mapping[str, StateSpec] = field(default_factory=dict)


def handles_volume_claims(program: Program) -> bool:
    """Whether pods with claims can be placed at all: some text, perhaps a layer's, has `filter volume_binding`."""
    return _uses_builtin_filter(program, "volume_binding")


def handles_resource_claims(program: Program) -> bool:
    """The same of claims for devices, and `filter dynamic_resources`."""
    return _uses_builtin_filter(program, "dynamic_resources")


def device_binding_timeout_s(program: Program) -> int:
    """How long devices may take to be bound to a node: the first rule that says so; 0 where there is none."""
    for rule in _builtin_filters(program, "dynamic_resources"):
        found = dict(rule.params)["binding_timeout_seconds"]
        assert isinstance(found, int), f"a time-out of {found!r}"
        return found
    return 0


def _uses_builtin_filter(program: Program, builtin: str) -> bool:
    return any(True for _ in _builtin_filters(program, builtin))


def _builtin_filters(program: Program, builtin: str) -> Iterator[BuiltinFilter]:
    for active in [(), *((index,) for index in range(len(program.layers)))]:
        for rule in rules_for(program, active).filters:
            if isinstance(rule, BuiltinFilter) and rule.builtin == builtin:
                yield rule


def rules_for(program: Program, active: tuple[int, ...]) -> RuleSet:
    """The rules for pods to which the layers with these indexes apply, from top to bottom."""
    from policysched.lang.ir.layers import apply_layer

    rules = program.rules
    for index in active:
        rules = apply_layer(rules, program.layers[index])
    return rules
