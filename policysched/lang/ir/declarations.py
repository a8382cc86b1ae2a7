"""Declarations of a checked policy: parameters, inputs, metrics, states and resources."""

from dataclasses import dataclass, field, replace
from typing import Literal

from policysched.lang.ir.expr import Const, Expr, Stage
from policysched.lang.types.kinds import BOOL, DURATION, INT, STRING, RecordType, RecordTypeField, Type
from policysched.text import Span


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
