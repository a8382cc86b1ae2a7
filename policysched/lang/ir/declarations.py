"""Declarations of a checked policy: parameters, inputs, metrics, states and resources."""

from dataclasses import dataclass, field, replace
from typing import Literal

from policysched.lang.ir.decay import Decay
from policysched.lang.ir.expr import Const, Expr, Stage
from policysched.lang.types.kinds import (
    BOOL,
    DURATION,
    INT,
    STRING,
    RecordType,
    RecordTypeField,
    Type,
    TypeKind,
)
from policysched.text import Span


@dataclass(frozen=True, slots=True)
class Parameter:
    """A constant that operators can set without editing the policy: `param NAME: TYPE = DEFAULT range LOW..HIGH`.

    `value` is already substituted everywhere in the program. `set_in` names its source (`ConfigMap ... key ...`,
    `settings`, `--param`); empty where `value` is `default`.
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

    The source is `source_map[source_key]` of `owner` (`labels`, `annotations`); for a string attribute such as
    `pod.service_account` it is the attribute itself, with `source_key` None.

    Absent: `default` if there is one; else missing if `type.optional`; else the pod (for a pod or namespace input) or
    the node is rejected with `required_text`. Invalid: rejected with `invalid_text`, or with `invalid_default` treated
    as absent. A number without a suffix is in `unit`.

    With `json_path` the source is JSON and the value is the one at that path; a path without a value is absent.
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

    @property
    def is_long_json(self) -> bool:
        """Whether each read parses JSON of up to 64 KiB that a tenant writes. Labels are short, and values of nodes are kept."""
        is_json = self.json_path is not None or self.type.kind is TypeKind.LIST
        return is_json and self.owner != "node" and self.source_map == "annotations"


@dataclass(frozen=True, slots=True)
class PairJoinSpec:
    """How series identify two pods. `sender` and `receiver` are labels of the series: either two, for the namespace and
    the pod, or one with `namespace/pod`. `pod_key` is a string expression of the pod: its name in the series."""

    sender: tuple[str, ...]
    receiver: tuple[str, ...]
    pod_key: Expr


@dataclass(frozen=True, slots=True)
class Metric:
    """A measured number of each node, or with a `PairJoinSpec` of each two pods. Samples are in `unit` and converted once,
    on arrival.

    `join` is `node`, `instance`, a pair (series label, node label), or `PairJoinSpec`. `assumed_load` is added to a node
    for each pod bound since its last sample; for a pair metric it is the value where the samples lack one of the pods.
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
    """Whether it has a value for each node rather than for each two pods."""
    return not isinstance(metric.join, PairJoinSpec)


StateTrigger = Literal["started", "terminated", "either", "failed", "any"]


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A moving average by key and node, updated by container events of this policy's pods:
    `v = keep * v + (1 - keep) * value`, beginning with `start`. With `decay`, `v` returns to `start` as time passes.

    `key` is a string expression of the pod, `value` a number of the pod and the container (`CONTAINER_RECORD`). An event
    for which `when` is not True is ignored. With `scope` cluster there is one value for each key, the same on all nodes.
    Beyond `entries_max` values (one for each key and node) the least recently updated one is dropped.
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
    decay: Decay | None
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
"""The fields of the container that `StateSpec.value` can read, in the order in which they are passed."""


@dataclass(frozen=True, slots=True)
class ResourceSpec:
    """A resource defined by the policy, accounted like cpu when a pod is assumed: `capacity` is an expression of the node,
    `request` of the pod."""

    name: str
    type: Type
    capacity: Expr
    request: Expr
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class OutageSpec:
    """The action while more than `missing_ratio_max` (0..1) of the candidates lack a metric: the rules that read it do
    not apply (`disable`), or the pods to which one of them applies wait (`wait`)."""

    missing_ratio_max: float
    action: Literal["disable", "wait"]
