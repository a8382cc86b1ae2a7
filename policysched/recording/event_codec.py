"""Events as JSON and back: the class's name, and its value. Policies are recorded as their texts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import orjson

from policysched.cluster.metric_samples import MetricSamples, PairSamples, Sample
from policysched.lang.check import check_sources
from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.lang.ir.program import Program, TeamSource, removed_program, suspended_program
from policysched.model.identifiers import NodeName
from policysched.recording.value_codec import Decode, UndecodableValue, decoder, to_json
from policysched.scheduler import events as e
from policysched.scheduler.policies.first_samples import SourceNameOf
from policysched.text import Diagnostic, Severity, Source

DIAGNOSTICS_RECORDED_MAX = 3
"""Of a rejected text; the first error is what is reported."""

_UNLIMITED_COST = 2**63

EVENT_TYPES: Mapping[str, type] = {
    event.__name__: event
    for union in get_args(e.Event)
    for event in (union.__subclasses__() if union is e.PodGroupChange else [union])
}


@dataclass(frozen=True, slots=True)
class _Samples:
    """What `MetricSamples` has when they arrive. The core adds the rest: the assumed load, recoveries, rows of states."""

    values: Mapping[NodeName, Sample]
    polled_ns: int
    pairs: PairSamples = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _ArrivedSamples:
    policy: str
    metric: str
    samples: _Samples


def encode_event(event: e.Event, source_name_of: SourceNameOf) -> tuple[str, bytes]:
    """The name of the event's class, and its value as JSON. `source_name_of`: of the policies' metrics."""
    if isinstance(event, e.PoliciesUpdated):
        return "PoliciesUpdated", _encode_policies(event, source_name_of)
    if isinstance(event, e.SamplesArrived):
        return "SamplesArrived", _encode_samples(event)
    return type(event).__name__, to_json(event)


class EventDecoder:
    """Decodes the events of one recording. `metric_sources`: the names of the sources of metrics, by the `source` that
    the policy names (None: no source); they grow with the policies that are decoded."""

    def __init__(self) -> None:
        self.metric_sources: dict[str | None, str | None] = {}
        self._programs: dict[str, Program] = {}
        self._decoders: dict[str, Decode] = {}

    def decode(self, name: str, value: Any) -> e.Event:
        """Raises UndecodableValue for what this version does not know."""
        if name == "PoliciesUpdated":
            return self._decode_policies(value)
        if name == "SamplesArrived":
            return self._decode_samples(value)
        if name not in EVENT_TYPES:
            raise UndecodableValue(f"event {name} is not known to this version")
        decode = self._decoders.get(name)
        if decode is None:
            decode = self._decoders[name] = decoder(EVENT_TYPES[name])
        event: e.Event = decode(value)
        return event

    def _decode_samples(self, value: Any) -> e.SamplesArrived:
        arrived: _ArrivedSamples = decoder(_ArrivedSamples)(value)
        samples = arrived.samples
        return e.SamplesArrived(
            arrived.policy,
            arrived.metric,
            MetricSamples(samples.values, samples.polled_ns, pairs=samples.pairs),
        )

    def _decode_policies(self, value: Mapping[str, Any]) -> e.PoliciesUpdated:
        try:
            return e.PoliciesUpdated(
                self._decode_bundle(value["bundle"]),
                value["resource_version"],
                self._decode_bundle(value["last_good"]),
                value["source_name"],
                value["last_good_source_name"],
                frozenset(value["unread_teams"]),
                {name: self._decode_program(program) for name, program in value["fallbacks"].items()},
                value.get("unchecked_texts", {}),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise UndecodableValue(f"PoliciesUpdated: {error!r}") from None

    def _decode_bundle(self, value: list[Mapping[str, Any]] | None) -> PolicyBundle | None:
        if value is None:
            return None
        return PolicyBundle({source["key"]: self._decode_source(source) for source in value})

    def _decode_source(self, value: Mapping[str, Any]) -> CheckedSource:
        program = value["program"]
        decode_diagnostic = decoder(Diagnostic)
        return CheckedSource(
            value["key"],
            value["is_library"],
            None if program is None else self._decode_program(program),
            tuple([decode_diagnostic(diagnostic) for diagnostic in value["diagnostics"]]),
            value["policy_name"],
        )

    def _decode_program(self, value: Mapping[str, Any]) -> Program:
        for metric_source, name in value["metric_sources"]:
            self.metric_sources[metric_source] = name
        team = None if value["team"] is None else TeamSource(**value["team"])
        key = to_json(value).decode()
        if key not in self._programs:
            self._programs[key] = _rebuild_program(value, team)
        return self._programs[key]


def _encode_samples(event: e.SamplesArrived) -> bytes:
    """What arrived: the core changes the assumed load of its samples later."""
    samples = event.samples
    recorded = _Samples(samples.values, samples.polled_ns, samples.pairs)
    return to_json(_ArrivedSamples(event.policy, event.metric, recorded))


def _encode_policies(event: e.PoliciesUpdated, source_name_of: SourceNameOf) -> bytes:
    def program_of(program: Program) -> dict[str, Any]:
        sources = {metric.source: source_name_of(metric) for metric in program.metrics.values()}
        return {
            "name": program.name,
            "sha256": program.sha256,
            "text": program.text,
            "removed": program.removed,
            "team": program.team,
            "metric_sources": list(sources.items()),
        }

    def source_of(source: CheckedSource) -> dict[str, Any]:
        errors = [item for item in source.diagnostics if item.severity >= Severity.ERROR]
        return {
            "key": source.key,
            "is_library": source.is_library,
            "policy_name": source.policy_name,
            "program": None if source.program is None else program_of(source.program),
            "diagnostics": errors[:DIAGNOSTICS_RECORDED_MAX],
        }

    def bundle_of(bundle: PolicyBundle | None) -> list[Any] | None:
        return None if bundle is None else [source_of(source) for source in bundle.sources.values()]

    return to_json(
        {
            "bundle": bundle_of(event.bundle),
            "resource_version": event.resource_version,
            "last_good": bundle_of(event.last_good),
            "source_name": event.source_name,
            "last_good_source_name": event.last_good_source_name,
            "unread_teams": event.unread_teams,
            "fallbacks": {name: program_of(program) for name, program in event.fallbacks.items()},
            "unchecked_texts": event.unchecked_texts,
        }
    )


def _rebuild_program(value: Mapping[str, Any], team: TeamSource | None) -> Program:
    """The program of a recorded text. Raises UndecodableValue where this version makes another one of it."""
    name, text, removed = value["name"], value["text"], value["removed"]
    if removed and not text:
        return replace(removed_program(name, removed), team=team)
    key = f"{name}.policy"
    checked = check_sources({key: Source(key, text)}, cost_max=_UNLIMITED_COST).sources[key]
    if checked.program is None:
        errors = [item for item in checked.diagnostics if item.severity >= Severity.ERROR]
        raise UndecodableValue(f"this version rejects the text of policy {name}: {errors[0].message}")
    program = replace(checked.program, team=team)
    if removed:
        return suspended_program(program, removed)
    if program.sha256 != value["sha256"]:
        raise UndecodableValue(
            f"policy {name} has sha256 {program.sha256[:6]} in this version and {value['sha256'][:6]} in the recording"
        )
    return program


def decode_line(line: bytes) -> dict[str, Any]:
    """A line of a recording. Raises UndecodableValue."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise UndecodableValue(f"not JSON: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise UndecodableValue("not a line of a recording: it has no `kind`")
    require_time(value.get("at_ns", 0), "a line of a recording")
    return value


def require_time(at_ns: object, what: str) -> None:
    if type(at_ns) is not int or not 0 <= at_ns < 2**63:
        raise UndecodableValue(f"not {what}: its `at_ns` is no time")
