"""The scenario of one test: the cluster, arriving pods and samples over time.

Nodes, pods and namespaces are Kubernetes objects or short forms of them. Objects at the top of the file are in every
test; a test's own objects come after them and replace those of the same name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from policysched.cluster.metric_samples import ALL_NODES, MetricSamples, Sample
from policysched.from_files.cluster_files import ClusterFiles, read_objects
from policysched.from_files.state_values import BadStateValues, parse_state_entries
from policysched.kube.decode import core_objects as wire
from policysched.kube.decode.errors import MalformedObject
from policysched.kube.decode.pods import decode_pod
from policysched.kube.extender.client import ExtenderEndpoint
from policysched.lang.ir.declarations import Metric, is_node_metric
from policysched.lang.ir.program import Program
from policysched.lang.types.kinds import Type, TypeKind
from policysched.lang.types.units import parse_value
from policysched.metric_sources.pod_pairs import MutablePodPairs, add_pair, parse_pair
from policysched.model.identifiers import NodeName
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from policysched.policy_files.source_set import UnusableFile
from policysched.policytest import short_forms
from policysched.policytest.series import BadSeries, Gap, SeriesStep, parse_series
from policysched.policytest.stub_extenders import StubExtender
from policysched.policytest.yaml_document import UnusableTestFile, YamlDocument, unusable_diagnostic
from policysched.scheduler import events as e
from policysched.scheduler.events import Event
from policysched.scheduler.policies.policy_states import state_text
from policysched.scheduler.policies.state_table import StateEntry
from policysched.text import Diagnostic, Span

Json = dict[str, Any]

DEFAULT_START_TIME = "2026-01-01T00:00:00Z"
_POLLS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class PodArrival:
    """A pod, when it arrives, and where the test declares it. Pods that exist from the start have the start time."""

    at_ns: int
    pod: ObservedPod
    span: Span


@dataclass(frozen=True, slots=True)
class ScenarioPoll:
    """The samples of one metric at one time."""

    at_ns: int
    metric: str
    samples: MetricSamples


@dataclass(frozen=True, slots=True)
class Scenario:
    """Times in ns since 1970; the run ends at `until_ns`.
    `cluster_events` has all other objects: budgets, services, volumes, custom resources. `polls` are ordered by time.
    `state_values` are the initial values of the policy's states in their saved form; `extenders` the stubs."""

    namespaces: tuple[Namespace, ...]
    nodes: tuple[Node, ...]
    cluster_events: tuple[Event, ...]
    pods: tuple[PodArrival, ...]
    polls: tuple[ScenarioPoll, ...]
    state_values: str | None
    extenders: Mapping[str, StubExtender]
    start_ns: int
    until_ns: int


def read_scenario(
    document: YamlDocument, index: int, program: Program, start_ns: int | None = None
) -> Scenario:
    """The scenario of the `index`-th test. `start_ns` is its start if it states none (None: DEFAULT_START_TIME).
    Raises UnusableTestFile with all of its problems."""
    return _ScenarioReader(document, index, program, start_ns).scenario()


class _ScenarioReader:
    def __init__(
        self, document: YamlDocument, index: int, program: Program, default_start_ns: int | None
    ) -> None:
        self._document, self._program = document, program
        self._section_paths: tuple[tuple[str | int, ...], ...] = ((), ("tests", index))
        self._problems: list[Diagnostic] = []
        start_ns = parse_value(self._text("start", DEFAULT_START_TIME), Type(TypeKind.TIMESTAMP), None)
        if default_start_ns is not None and not self._text("start", ""):
            start_ns = default_start_ns
        if not isinstance(start_ns, int):
            self._add_problem(
                f"`{self._text('start', DEFAULT_START_TIME)}` is not a time", self._span("start")
            )
            start_ns = 0
        self._start_ns = start_ns

    def scenario(self) -> Scenario:
        namespaces: dict[str, Namespace] = {}
        nodes: dict[str, Node] = {}
        pods: dict[str, PodArrival] = {}
        polls, last_ns = self._polls()
        at_ns = self._start_ns + self._duration_ns("at", last_ns)
        files = ClusterFiles()
        for obj, span in self._all_objects():
            pod_count, faults = len(files.pods), len(files.malformed)
            files.add(obj)
            for malformed in files.malformed[faults:]:
                self._add_problem(str(malformed), span)
            for observed in files.pods[pod_count:]:
                pods[observed.pod.full_name] = self._arrival(observed, obj, at_ns, len(pods), span)
        namespaces |= {namespace.name: namespace for namespace in files.namespaces}
        nodes |= {node.name: node for node in files.nodes}
        for kind, obj, span in self._inline_objects():
            match self._read(self._expand(kind, obj), span):
                case Namespace() as namespace:
                    namespaces[namespace.name] = namespace
                case Node() as node:
                    nodes[node.name] = node
                case ObservedPod() as observed:
                    pods.pop(observed.pod.full_name, None)
                    pods[observed.pod.full_name] = self._arrival(observed, obj, at_ns, len(pods), span)
        self._check_nodes(nodes)
        state_values = self._states(nodes)
        extenders = self._extenders(nodes)
        until_ns = at_ns + self._duration_ns("for", 0)
        last_arrival_ns = max((arrival.at_ns for arrival in pods.values()), default=at_ns)
        if self._problems:
            raise UnusableTestFile(tuple(self._problems))
        return Scenario(
            tuple(namespaces.values()),
            tuple(nodes.values()),
            _cluster_events(files),
            tuple(sorted(pods.values(), key=lambda arrival: arrival.at_ns)),
            tuple(polls(max(until_ns, last_arrival_ns) - self._start_ns)),
            state_values,
            extenders,
            self._start_ns,
            max(until_ns, last_arrival_ns),
        )

    # ── objects ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _all_objects(self) -> Iterator[tuple[Json, Span]]:
        yield from self._file_objects()
        for section_path, objects in self._sections("objects"):
            yield from (
                (obj, self._document.span(*section_path, "objects", at)) for at, obj in enumerate(objects)
            )

    def _file_objects(self) -> Iterator[tuple[Json, Span]]:
        folder = Path(self._document.source.name).parent
        for section_path, paths in self._sections("cluster"):
            for path in [paths] if isinstance(paths, str) else paths:
                span = self._document.span(*section_path, "cluster")
                try:
                    for obj in read_objects(str(folder / path)):
                        if isinstance(obj, MalformedObject):
                            self._add_problem(str(obj), span)
                        else:
                            yield obj, span
                except UnusableFile as error:
                    self._add_problem(str(error), span)

    def _inline_objects(self) -> Iterator[tuple[str, Json, Span]]:
        for kind in ("namespaces", "nodes", "pods"):
            for section_path, objects in self._sections(kind):
                for index, obj in enumerate(objects):
                    yield kind, obj, self._document.span(*section_path, kind, index)

    def _expand(self, kind: str, obj: Json) -> Json:
        make: Callable[[Json], Json] = {
            "namespaces": short_forms.expand_namespace,
            "nodes": short_forms.expand_node,
            "pods": lambda short_form: short_forms.expand_pod(short_form, scheduler=self._program.name),
        }[kind]
        return make(obj)

    def _read(self, obj: Json, span: Span) -> Namespace | Node | ObservedPod | None:
        try:
            match obj.get("kind"):
                case "Namespace":
                    return wire.decode_namespace(obj)
                case "Node":
                    return wire.decode_node(obj)
                case "Pod":
                    return decode_pod(obj)
                case kind:
                    raise AssertionError(f"a short form of a {kind}")
        except MalformedObject as error:
            self._add_problem(str(error), span)
            return None

    def _arrival(self, observed: ObservedPod, obj: Json, at_ns: int, index: int, span: Span) -> PodArrival:
        """Pending pods arrive in the order of the file; without a creation time each is a nanosecond younger than the one
        before."""
        is_pending = observed.node is None and not observed.finished
        arrives = obj.get("arrives")
        arrival_ns = at_ns if is_pending else self._start_ns
        if isinstance(arrives, str):
            arrival_ns = self._start_ns + _duration_ns(arrives)
        if observed.pod.created_ns == 0:
            observed = replace(observed, pod=replace(observed.pod, created_ns=arrival_ns + index))
        return PodArrival(arrival_ns, observed, span)

    def _check_nodes(self, nodes: Mapping[str, Node]) -> None:
        for section_path, metrics in self._sections("metrics"):
            for metric, series in metrics.items():
                declared = self._program.metrics.get(metric)
                for node in series if declared is None or is_node_metric(declared) else ():
                    if node not in nodes:
                        self._add_unknown_name(
                            "node", node, nodes, self._document.span(*section_path, "metrics", metric, node)
                        )

    # ── values of states ───────────────────────────────────────────────────────────────────────────────────────────

    def _states(self, nodes: Mapping[str, Node]) -> str | None:
        """A test's values of a state replace the file's."""
        tables: dict[str, list[StateEntry]] = {}
        for section_path, states in self._sections("state"):
            for name, values in states.items():
                span = self._document.span(*section_path, "state", name)
                state = self._program.states.get(name)
                if state is None:
                    self._add_unknown_name("state", name, self._program.states, span)
                    continue
                try:
                    tables[name] = parse_state_entries(state, values)
                except BadStateValues as error:
                    self._add_problem(
                        str(error), self._document.span(*section_path, "state", name, *error.path)
                    )
                    continue
                for key, node, *_ in tables[name]:
                    if node != ALL_NODES and node not in nodes:
                        path = (key, node) if key else (node,)
                        self._add_unknown_name(
                            "node", node, nodes, self._document.span(*section_path, "state", name, *path)
                        )
        return state_text(0, tables) if tables else None

    # ── extenders ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _extenders(self, nodes: Mapping[str, Node]) -> dict[str, StubExtender]:
        """A test's extender replaces the file's of the same name."""
        stubs: dict[str, StubExtender] = {}
        extender_names = [extender.name for extender in self._program.extenders]
        for section_path, extenders in self._sections("extenders"):
            for name, declared in extenders.items():
                if name not in extender_names:
                    self._add_unknown_name(
                        "extender",
                        name,
                        extender_names,
                        self._document.span(*section_path, "extenders", name),
                    )
                for verb in ("filter", "prioritize"):
                    for node in declared.get(verb, {}):
                        if node not in nodes:
                            span = self._document.span(*section_path, "extenders", name, verb, node)
                            self._add_unknown_name("node", node, nodes, span)
                endpoint = ExtenderEndpoint(
                    name,
                    url="",
                    filter="filter",
                    prioritize="prioritize",
                    ignorable=declared.get("ignorable", False),
                    resources=frozenset(declared.get("managedResources", ())),
                )
                stubs[name] = StubExtender(
                    endpoint,
                    declared.get("filter", {}),
                    declared.get("prioritize", {}),
                    declared.get("error"),
                )
        return stubs

    # ── samples ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _polls(self) -> tuple[Callable[[int], Iterator[ScenarioPoll]], int]:
        """A function that makes the polls up to a time (ns after the start), and the time of the last step of all series."""
        series: dict[str, dict[str, list[SeriesStep]]] = {}
        for section_path, metrics in self._sections("metrics"):
            for name, by_node in metrics.items():
                metric = self._program.metrics.get(name)
                if metric is None:
                    self._add_unknown_name(
                        "metric",
                        name,
                        self._program.metrics,
                        self._document.span(*section_path, "metrics", name),
                    )
                    continue
                for node, text in by_node.items():
                    if not is_node_metric(metric) and parse_pair(node) is None:
                        self._add_problem(
                            f"`{node}` is not a pair of pods: write `namespace/name -> namespace/name`",
                            self._document.span(*section_path, "metrics", name, node),
                        )
                        continue
                    try:
                        steps = list(parse_series(str(text), metric.type, metric.unit))
                    except BadSeries as error:
                        self._add_problem(
                            str(error), self._document.span(*section_path, "metrics", name, node)
                        )
                        continue
                    series.setdefault(name, {})[node] = steps
        steps_ns = {
            name: self._duration_ns("interval", self._program.metrics[name].poll_interval_ns)
            for name in series
        }
        last_ns = max(
            (steps_ns[name] * (len(steps) - 1) for name, nodes in series.items() for steps in nodes.values()),
            default=0,
        )

        def polls(until_ns: int) -> Iterator[ScenarioPoll]:
            made = [
                poll
                for name, by_node in series.items()
                for poll in _polls_of(
                    self._program.metrics[name], by_node, self._start_ns, steps_ns[name], until_ns
                )
            ]
            return iter(sorted(made, key=lambda poll: poll.at_ns))

        return polls, last_ns

    # ── reading ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _sections(self, key: str) -> Iterator[tuple[tuple[str | int, ...], Any]]:
        """The section of the file, then the one of the test."""
        values = self._document.values
        test = values["tests"][self._section_paths[1][1]]
        for section_path, section in zip(self._section_paths, (values, test), strict=True):
            if key in section:
                yield section_path, section[key]

    def _text(self, key: str, otherwise: str) -> str:
        texts = [value for _, value in self._sections(key)]
        return str(texts[-1]) if texts else otherwise

    def _span(self, key: str) -> Span:
        section_paths = [section_path for section_path, _ in self._sections(key)]
        return self._document.span(*(section_paths[-1] if section_paths else ()), key)

    def _duration_ns(self, key: str, otherwise_ns: int) -> int:
        word = self._text(key, "")
        duration_ns = _duration_ns(word) if word else otherwise_ns
        if key == "interval" and duration_ns <= 0:
            self._add_problem("the interval must be longer than 0", self._span(key))
            return 1
        return duration_ns

    def _add_unknown_name(self, noun: str, name: str, known: Iterable[str], span: Span) -> None:
        self._problems.append(short_forms.unknown_name(noun, name, known, span))

    def _add_problem(self, message: str, span: Span) -> None:
        self._problems.append(unusable_diagnostic(message, span))


def _cluster_events(files: ClusterFiles) -> tuple[Event, ...]:
    return (
        *files.node_objects,
        *(e.DisruptionBudgetUpdated(budget) for budget in files.budgets),
        *(e.SelectorOwnerUpdated(selector_owner) for selector_owner in files.selector_owners),
        *(e.StorageObjectUpdated(storage_object) for storage_object in files.storage),
        *(e.DeviceObjectUpdated(device_object) for device_object in files.devices),
        *files.pod_group_events(),
    )


def _duration_ns(word: str) -> int:
    duration_ns = parse_value(word, Type(TypeKind.DURATION), None)
    assert isinstance(duration_ns, int), f"the schema lets `{word}` pass as a duration"
    return duration_ns


def _polls_of(
    metric: Metric, series: Mapping[str, list[SeriesStep]], start_ns: int, step_ns: int, until_ns: int
) -> Iterator[ScenarioPoll]:
    """A series of one value lasts for ever; a longer one ends with its last value, which becomes stale."""
    count = min(until_ns // step_ns + 1, _POLLS_MAX)
    samples_by_node: dict[NodeName, Sample] = {}
    for index in range(count):
        at_ns = start_ns + index * step_ns
        for node, steps in series.items():
            step = steps[0] if len(steps) == 1 else steps[index] if index < len(steps) else Gap.NONE
            match step:
                case Gap.STALE:
                    samples_by_node.pop(NodeName(node), None)
                case Gap.NONE:
                    pass
                case value if value < 0 and metric.type.kind not in (TypeKind.INT, TypeKind.FLOAT):
                    samples_by_node.pop(
                        NodeName(node), None
                    )  # not a valid size, rate or share: missing, as from any source
                case value:
                    samples_by_node[NodeName(node)] = Sample(float(value), at_ns)
        yield ScenarioPoll(at_ns, metric.name, _samples_of(metric, samples_by_node, at_ns))


def _samples_of(metric: Metric, samples_by_node: Mapping[NodeName, Sample], at_ns: int) -> MetricSamples:
    """A pair metric has only the values of this poll."""
    if is_node_metric(metric):
        return MetricSamples(dict(samples_by_node), polled_ns=at_ns)
    pairs: MutablePodPairs = {}
    for key, sample in samples_by_node.items():
        pair = parse_pair(key)
        assert pair is not None, f"`{key}` is not a pair of pods"
        add_pair(pairs, pair, sample.value)
    return MetricSamples({}, polled_ns=at_ns, pairs=pairs)
