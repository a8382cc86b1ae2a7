"""The input of a case as a scenario, decided by the shipped policies with the real engine, offline.

`value_of` evaluates an expression in the policy's language: it appends the expression to the
policy's text as one more score, so that the policy's names are in scope, and reads its raw value
from the explanation.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from policysched.from_files.state_values import parse_state_entries
from policysched.kube.decode import core_objects as wire
from policysched.kube.decode.pods import decode_pod
from policysched.lang.ir.program import Program
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.metric_sources.source import RawSamples, convert_samples
from policysched.model.pod_status import ObservedPod
from policysched.policy_files.checking import check_source_set
from policysched.policy_files.source_set import SourceSet
from policysched.policy_files.sources import parse_sources
from policysched.policytest import short_forms
from policysched.policytest.scenario import PodArrival, Scenario, ScenarioPoll
from policysched.policytest.scenario_runner import ScenarioResult, ScenarioRunner
from policysched.scheduler.policies.policy_states import state_text
from policysched.text import Severity, Source, Span

Json = dict[str, Any]

POLICIES = Path(__file__).resolve().parents[3] / "policies"
START_NS = 1_767_225_600 * 10**9  # 2026-01-01
_NOWHERE = Span(Source("case", ""), 0, 0)


class Refused(Exception):
    """A policy is rejected with the given parameters. The text has the diagnostics."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A shipped policy by name, with parameter values. `more` is appended to its text."""

    name: str
    params: Mapping[str, str] = field(default_factory=dict)
    more: str = ""

    def program(self) -> Program:
        """Raises Refused."""
        checked = _checked(self.name, tuple(sorted(self.params.items())), self.more)
        if isinstance(checked, Refused):
            raise checked
        return checked

    def with_more(self, text: str) -> "Policy":
        return replace(self, more=f"{self.more}\n{text}\n")

    def accepting(self, params: Mapping[str, Any]) -> "Policy":
        """The program with those values that the policy accepts. The seed systems silently replace
        invalid values by defaults, so rejected values are left out.
        """
        everything = replace(
            self, params={**self.params, **{name: str(value) for name, value in params.items()}}
        )
        with suppress(Refused):  # one check instead of one for each value
            everything.program()
            return everything
        taken = self
        for name, value in params.items():
            tried = replace(taken, params={**taken.params, name: str(value)})
            try:
                tried.program()
            except Refused:
                continue
            taken = tried
        return taken


@cache
def _checked(name: str, params: tuple[tuple[str, str], ...], more: str) -> Program | Refused:
    text = (POLICIES / f"{name}.policy").read_text(encoding="utf-8")
    (source,) = parse_sources(text + more, str(POLICIES / f"{name}.policy"))
    try:
        return _program(source, [f"{key}={value}" for key, value in params])
    except Refused as refused:
        return refused.with_traceback(None)


def _program(source_set: SourceSet, flags: Sequence[str]) -> Program:
    bundle = check_source_set(source_set, flags)
    (key,) = source_set.requested
    checked = bundle.sources[key]
    if checked.program is None:
        errors = [
            diagnostic.message for diagnostic in checked.diagnostics if diagnostic.severity >= Severity.ERROR
        ]
        raise Refused("; ".join(errors))
    unknown = [flag for flag in flags if flag.partition("=")[0] not in checked.program.parameters]
    if unknown:
        raise Refused(f"no parameter for {', '.join(unknown)}")
    return checked.program


def policy_of_text(text: str) -> Program:
    """Raises Refused."""
    (source,) = parse_sources(text, "case.policy")
    return _program(source, ())


def without_filters(program: Program) -> Program:
    """A policy that gives every node the same score."""
    return replace(program, rules=replace(program.rules, filters=()))


# ── objects ────────────────────────────────────────────────────────────────────────────────────────────────────────


def roomy_node(name: str = "roomy") -> Json:
    """A node with room for everything, for questions about pods alone."""
    return short_forms.expand_node({"name": name, "cpu": "1000", "memory": "1000Gi", "pods": "1000"})


def node_with(name: str, **more: Any) -> Json:
    """A node in the short form of policy tests."""
    return short_forms.expand_node({"name": name, **more})


def pod_with(name: str, *, scheduler: str = "", **more: Any) -> Json:
    """A pod in the short form of policy tests; without a scheduler it belongs to the policy."""
    expanded = short_forms.expand_pod({"name": name, **more}, scheduler=scheduler)
    return expanded if scheduler else {**expanded, "spec": _without(expanded["spec"], "schedulerName")}


def _without(values: Json, key: str) -> Json:
    return {name: value for name, value in values.items() if name != key}


def world(
    program: Program,
    *,
    nodes: Iterable[Json],
    pods: Iterable[Json],
    metrics: Mapping[str, Mapping[str, float | str | None]] | None = None,
    state: Mapping[str, Any] | None = None,
    scheduler: str | None = None,
) -> Scenario:
    """A scenario in which everything exists from the start; pending pods arrive in their order.
    Pods that name no scheduler, or `scheduler` (the seed system's own name), belong to the policy.
    A metric value of None is no sample. `state` is as in policy tests.
    """
    observed = [
        decode_pod(_as_it_stands(short_forms.expand_pod(pod, scheduler=program.name))) for pod in pods
    ]
    own = [_ours(pod, program.name, scheduler) for pod in observed]
    placed = [PodArrival(START_NS, pod, _NOWHERE) for pod in own if pod.node is not None]
    pending = [
        PodArrival(START_NS, _created(pod, index), _NOWHERE)
        for index, pod in enumerate(pod for pod in own if pod.node is None)
    ]
    polls = [
        ScenarioPoll(START_NS, name, convert_samples(program.metrics[name], _raw(values)))
        for name, values in (metrics or {}).items()
    ]
    return Scenario(
        namespaces=(),
        nodes=tuple(wire.decode_node(short_forms.expand_node(node)) for node in nodes),
        cluster_events=(),
        pods=(*placed, *pending),
        polls=tuple(polls),
        state_values=None
        if state is None
        else state_text(
            0, {name: parse_state_entries(program.states[name], values) for name, values in state.items()}
        ),
        extenders={},
        start_ns=START_NS,
        until_ns=START_NS,
    )


def _as_it_stands(pod: Json) -> Json:
    """A pod as the seed system read it. For a container with a limit and no request, the API server
    would have added the request, and so does decoding; here the request is set to zero to keep it
    absent.
    """
    spec = pod["spec"]
    requests = {
        key: [_without_implied_requests(container) for container in spec[key]]
        for key in ("containers", "initContainers")
        if spec.get(key)
    }
    return {**pod, "spec": {**spec, **requests}}


def _without_implied_requests(container: Json) -> Json:
    resources = container.get("resources") or {}
    nothing = dict.fromkeys(resources.get("limits") or {}, "0")
    requests = {**nothing, **(resources.get("requests") or {})}
    return {**container, "resources": {**resources, "requests": requests}} if nothing else container


def _raw(values: Mapping[str, float | str | None]) -> RawSamples:
    return RawSamples({node: value for node, value in values.items() if value is not None}, START_NS)


def _ours(pod: ObservedPod, policy: str, scheduler: str | None) -> ObservedPod:
    mine = pod.pod.scheduler in (policy, scheduler)
    return replace(pod, pod=replace(pod.pod, scheduler=policy)) if mine else pod


def _created(pod: ObservedPod, place: int) -> ObservedPod:
    if pod.pod.created_ns:
        return pod
    return replace(pod, pod=replace(pod.pod, created_ns=START_NS + place))


# ── evaluation ─────────────────────────────────────────────────────────────────────────────────────────────────────


def play(program: Program, scenario: Scenario, *, whole_names: bool = False) -> ScenarioResult:
    """Decide every pending pod, with explanations as of its decision. Names in the result are
    without the namespace, unless `whole_names` is set.
    """
    game = ScenarioRunner(program, scenario, {pod.pod.pod.full_name for pod in scenario.pods})
    for _ in game.rounds():
        pass
    result = game.result
    if whole_names:
        return result
    return replace(
        result,
        decision_order=[_short(name) for name in result.decision_order],
        node={_short(name): node for name, node in result.node.items()},
        pending={_short(name): message for name, message in result.pending.items()},
        explanations={_short(name): explanation for name, explanation in result.explanations.items()},
    )


def _short(name: str) -> str:
    return name.partition("/")[2]


_PROBE = "seed_case_probe"


@dataclass(frozen=True, slots=True)
class Probe:
    """An expression of a policy's language, and the condition under which a node has a value."""

    expression: str
    when: str = ""

    def score(self, name: str, *, missing: bool) -> str:
        condition = f"when {self.when} " if self.when else ""
        return (
            f"score {name} weight 1 {condition}higher {self.expression} normalize minmax"
            f"{' missing worst' if missing else ''}"
        )


def value_of(
    policy: Policy,
    expression: str,
    *,
    nodes: Iterable[Json],
    pods: Iterable[Json],
    when: str = "",
    **more: Any,
) -> dict[str, dict[str, int | float | None]]:
    """The value of the expression by pod and node, whatever the filters say; None where `when` does
    not hold.
    """
    probe = Probe(expression, when)
    return values_of(policy, [probe], nodes=nodes, pods=pods, **more)[probe]


def values_of(
    policy: Policy, probes: Sequence[Probe], *, nodes: Iterable[Json], pods: Iterable[Json], **more: Any
) -> dict[Probe, dict[str, dict[str, int | float | None]]]:
    """`value_of` for several expressions, evaluated in one run."""
    extended = policy
    for number, probe in enumerate(probes):
        missing = _can_be_missing(POLICIES, policy.name, policy.more, probe)
        extended = extended.with_more(probe.score(f"{_PROBE}_{number}", missing=missing))
    program = without_filters(extended.program())
    played = play(program, world(program, nodes=nodes, pods=pods, **more))
    return {
        probe: {
            pod: {node: cell.raw for node, cell in explanation.scores.get(f"{_PROBE}_{number}", {}).items()}
            for pod, explanation in played.explanations.items()
        }
        for number, probe in enumerate(probes)
    }


@cache
def _can_be_missing(_folder: Path, name: str, more: str, probe: Probe) -> bool:
    """Whether the value can be missing: `missing` is an error where it cannot."""
    try:
        Policy(name).with_more(f"{more}\n{probe.score(_PROBE, missing=True)}").program()
    except Refused:
        return False
    return True


def scores(explanation: PlacementExplanation, rule: str) -> dict[str, int]:
    """A rule's scores by node."""
    return {node: cell.score for node, cell in explanation.scores.get(rule, {}).items()}


def raw(explanation: PlacementExplanation, rule: str) -> dict[str, int | float | None]:
    """A rule's raw values by node, before normalizing."""
    return {node: cell.raw for node, cell in explanation.scores.get(rule, {}).items()}
