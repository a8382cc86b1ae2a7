"""The checked policy: names resolved, types known, constants folded, includes and layers applied.

A `Program` is the interface between the language and the scheduler. The checker returns one, or diagnostics with at
least one error. `evaluate` compiles its rules to columns, `scheduler` reads its queue order, gangs and preemption, and
`tests/reference` defines its meaning.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

from policysched.lang.ir.declarations import Input, Metric, OutageSpec, Parameter, ResourceSpec, StateSpec
from policysched.lang.ir.expr import Expr
from policysched.lang.ir.layers import Layer, apply_layers
from policysched.lang.ir.quotas import QuotaSpec
from policysched.lang.ir.rules import NO_RULES, BuiltinFilter, RuleSet
from policysched.text import Source, Span


@dataclass(frozen=True, slots=True)
class OrderKey:
    """One key of the queue order. Pods for which the value is missing sort last in either direction."""

    value: Expr
    descending: bool


class OnTimeout(Enum):
    REQUEUE = "requeue"
    FAIL = "fail"
    BEST_EFFORT = "best_effort"


class OnBindFailure(Enum):
    KEEP = "keep"
    EVICT = "evict"


class GangMode(Enum):
    WHOLE = "whole"
    GATE = "gate"


class DisruptionMode(Enum):
    """How a running gang is preempted: down to its minimum or whole, member by member, or only whole."""

    MINIMUM = "minimum"
    SINGLE = "single"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class TopologyLevel:
    """A node label on whose value the nodes of a gang agree: always, or where that is possible (not `required`)."""

    key: str
    required: bool


@dataclass(frozen=True, slots=True)
class GangSpec:
    """How pods form gangs. A pod whose `key` is missing belongs to no gang. `minimum` and `maximum` are int expressions of
    the pod, `timeout` a duration of the pod (None: no timeout). All nodes of one gang must have the same value of the
    label that `topology` names (a string of the pod; None or missing: any nodes), or of the `levels`, widest first. `disruption` is a string of the pod,
    the name of a `DisruptionMode`. `on_bind_failure`: what happens to bound members when the bind of another is refused."""

    key: Expr
    minimum: Expr
    maximum: Expr | None
    timeout: Expr | None
    on_timeout: OnTimeout
    mode: GangMode
    topology: Expr | None
    levels: tuple[TopologyLevel, ...]
    on_bind_failure: OnBindFailure
    disruption: Expr | None
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Extender:
    """A service that is called after the filters; `name` refers to its entry in the settings. Without a `weight` its
    scores are ignored. `missing` is the score of a node that the extender did not score, as in `ScoreRule`; None
    without a weight."""

    name: str
    weight: int | None
    missing: int | Literal["neutral"] | None
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class PreemptionSpec:
    """Which pods of lower priority may be evicted: none, those of this scheduler, all, or those for which `victims` is
    True. `order`: which of them go first; missing values go last, and kube-scheduler's order decides between equals."""

    mode: Literal["never", "own", "any", "where"]
    victims: Expr | None
    order: tuple[OrderKey, ...] = ()


@dataclass(frozen=True, slots=True)
class CanarySpec:
    """Rules for a share of the owners. `layer` is the index of its layer, whose condition says which pods are in the share; None
    where the canary is rolled back, and its rules apply to no pod.

    The guard breaks when the pending pods of the share are at least `pending_max` (a ratio) of its pods for `broken_for_ns`.
    `sha256` (hex) is the hash of the statement as formatted: another one is another canary.
    """

    name: str
    layer: int | None
    pending_max: float
    broken_for_ns: int
    sha256: str
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class TeamSource:
    """What the program of a team was made of: its text and the text of its parameter values (may be empty), both as the
    team wrote them, the hash of the operator's texts that they were checked with, and the team's namespace (empty in what
    an earlier version saved)."""

    text: str
    params: str
    base_sha256: str
    namespace: str = ""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Program:
    """A policy that passed the checker.

    `name` is the schedulerName. `text` is the formatted text with includes expanded and with the values of the
    parameters as their defaults; the same Program can be rebuilt from it alone, and the last known good policy is stored
    in this form. `sha256` (hex) is the hash of that text, so it changes with a parameter's value and not with a comment or the layout.
    `queue` omits the pod's UID, which is always the last key.
    """

    name: str
    name_span: Span = field(compare=False)
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
    quotas: Mapping[str, QuotaSpec] = field(default_factory=dict)
    shadows: RuleSet = NO_RULES
    """Rules that are evaluated and counted, never used. They are no part of `rules`, so nothing that decides sees them."""
    canary: CanarySpec | None = None
    removed: str = ""
    """Why the policy refuses every pod: it is removed or suspended, and no text of it runs. Empty for a policy that runs."""
    team: TeamSource | None = None
    """Of a policy that a team owns."""


def removed_program(name: str, message: str) -> Program:
    """What runs under the name of a removed policy: no rules, and every pod gets the message."""
    return Program(
        name=name,
        name_span=Span(Source(name, name), 0, len(name)),
        version=0,
        sha256=hashlib.sha256(f"{name} is removed: {message}".encode()).hexdigest(),
        text="",
        inputs={},
        metrics={},
        outage=None,
        queue=(),
        gang=None,
        rules=RuleSet((), ()),
        layers=(),
        preemption=PreemptionSpec("never", None),
        removed=message,
    )


def suspended_program(program: Program, message: str) -> Program:
    """What runs under the name of a policy whose text may not run now. The text stays saved."""
    return replace(removed_program(program.name, message), text=program.text, team=program.team)


def without_canary(program: Program) -> Program:
    """The same text, with no owner in the canary's share."""
    if program.canary is None or program.canary.layer is None:
        return program
    at = program.canary.layer
    layers = program.layers[:at] + program.layers[at + 1 :]
    return replace(program, layers=layers, canary=replace(program.canary, layer=None))


def shadow_program(program: Program) -> Program:
    """A program whose rules are the shadow rules: they are compiled and evaluated apart, like a policy of their own."""
    return replace(program, rules=program.shadows, shadows=NO_RULES, layers=(), outage=None)


def handles_volume_claims(program: Program) -> bool:
    """Whether any pod with volume claims can be placed: the policy or one of its layers has `filter volume_binding`."""
    return _uses_builtin_filter(program, "volume_binding")


def handles_resource_claims(program: Program) -> bool:
    """The same for resource claims and `filter dynamic_resources`."""
    return _uses_builtin_filter(program, "dynamic_resources")


def handles_extended_resources(program: Program) -> bool:
    """Whether devices are allocated for extended resources: a `filter dynamic_resources` does not exclude it."""
    return any(
        dict(rule.params)["extended_resources"] == "yes"
        for rule in _builtin_filters(program, "dynamic_resources")
    )


def device_binding_timeout_s(program: Program) -> int:
    """The `binding_timeout_seconds` of the first `filter dynamic_resources`, 0 without one."""
    for rule in _builtin_filters(program, "dynamic_resources"):
        timeout_s = dict(rule.params)["binding_timeout_seconds"]
        assert isinstance(timeout_s, int), f"binding_timeout_seconds is {timeout_s!r}"
        return timeout_s
    return 0


def _uses_builtin_filter(program: Program, builtin: str) -> bool:
    return any(True for _ in _builtin_filters(program, builtin))


def _builtin_filters(program: Program, builtin: str) -> Iterator[BuiltinFilter]:
    for active in [(), *((index,) for index in range(len(program.layers)))]:
        for rule in rules_for(program, active).filters:
            if isinstance(rule, BuiltinFilter) and rule.builtin == builtin:
                yield rule


def rules_for(program: Program, active: tuple[int, ...]) -> RuleSet:
    """The rules with the layers of these indexes applied, in the order of the policy."""
    return apply_layers(program.rules, [program.layers[index] for index in active])
