"""The world of one test: who is there, who comes when, and what is measured meanwhile.

Nodes, pods and namespaces are Kubernetes objects, or a short form of them. What stands at the top of the file is in every
test; a test's own objects come behind, and one of the same name takes the place of the file's.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from policysched.cluster.samples import EVERYWHERE, MetricSamples, Sample
from policysched.harness.cluster_files import ClusterFiles, objects_in
from policysched.harness.state_values import BadValues, entries_of
from policysched.kube.decode import pods as wire
from policysched.kube.decode.malformed import Malformed
from policysched.kube.extender.client import Peer
from policysched.lang.ir.program import Metric, Program, of_nodes
from policysched.lang.types.kinds import Kind, Type
from policysched.lang.types.units import parse_value
from policysched.metric_sources.pairs import MutablePairs, add_pair, pair_written
from policysched.model.objects import Namespace, Node, NodeName, ObservedPod
from policysched.policy_files.sources import UnusableFile
from policysched.policytest import short_forms
from policysched.policytest.canned import Canned
from policysched.policytest.documents import BadDocument, Document, unusable
from policysched.policytest.series import BadSeries, Gap, Step, series_of
from policysched.scheduler import events as e
from policysched.scheduler.events import Event
from policysched.scheduler.policies.states import Entry, kept_text
from policysched.text import Diagnostic, Span

Json = dict[str, Any]

START = "2026-01-01T00:00:00Z"
_POLLS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod, when it is first seen, and where the test says so. Those that are there from the start have the time of
    the start."""

    at_ns: int
    pod: ObservedPod
    span: Span


@dataclass(frozen=True, slots=True)
class Poll:
    """What was measured of one metric at one moment."""

    at_ns: int
    metric: str
    samples: MetricSamples


@dataclass(frozen=True, slots=True)
class World:
    """Times in ns since 1970. Pending pods of the policy come at `at_ns` where they do not say otherwise; what is seen
    until `until_ns` counts. `around` is everything else that a cluster has: budgets, services, volumes, custom resources. `polls`
    are in the order of their times. `kept` are the values of the policy's states at the start, as a scheduler keeps them; `extenders`
    those that are asked, and what they say."""

    namespaces: tuple[Namespace, ...]
    nodes: tuple[Node, ...]
    around: tuple[Event, ...]
    pods: tuple[Arrival, ...]
    polls: tuple[Poll, ...]
    kept: str | None
    extenders: Mapping[str, Canned]
    start_ns: int
    at_ns: int
    until_ns: int


def world_of(document: Document, index: int, program: Program) -> World:
    """The world of the `index`-th test. Raises BadDocument with everything that is wrong with it."""
    return _Reading(document, index, program).world()


class _Reading:
    def __init__(self, document: Document, index: int, program: Program) -> None:
        self._document, self._program = document, program
        self._places: tuple[tuple[str | int, ...], ...] = ((), ("tests", index))
        self._found: list[Diagnostic] = []
        start_ns = parse_value(self._word("start", START), Type(Kind.TIMESTAMP), None)
        if not isinstance(start_ns, int):
            self._complain(f"`{self._word('start', START)}` is no time", self._span("start"))
            start_ns = 0
        self._start_ns = start_ns

    def world(self) -> World:
        namespaces: dict[str, Namespace] = {}
        nodes: dict[str, Node] = {}
        pods: dict[str, Arrival] = {}
        polls, last_ns = self._polls()
        at_ns = self._start_ns + self._duration_ns("at", last_ns)
        files = ClusterFiles()
        for obj, span in self._whole_objects():
            known, faults = len(files.pods), len(files.malformed)
            files.take(obj)
            for malformed in files.malformed[faults:]:
                self._complain(str(malformed), span)
            for seen in files.pods[known:]:
                pods[seen.pod.full_name] = self._arrival(seen, obj, at_ns, len(pods), span)
        namespaces |= {one.name: one for one in files.namespaces}
        nodes |= {one.name: one for one in files.nodes}
        for kind, obj, span in self._from_here():
            match self._read(self._whole(kind, obj), span):
                case Namespace() as one:
                    namespaces[one.name] = one
                case Node() as one:
                    nodes[one.name] = one
                case ObservedPod() as one:
                    pods.pop(one.pod.full_name, None)
                    pods[one.pod.full_name] = self._arrival(one, obj, at_ns, len(pods), span)
        self._check_nodes(nodes)
        kept = self._states(nodes)
        extenders = self._extenders(nodes)
        until_ns = at_ns + self._duration_ns("for", 0)
        last_arrival_ns = max((one.at_ns for one in pods.values()), default=at_ns)
        if self._found:
            raise BadDocument(tuple(self._found))
        return World(
            tuple(namespaces.values()),
            tuple(nodes.values()),
            _around(files),
            tuple(sorted(pods.values(), key=lambda one: one.at_ns)),
            tuple(polls(max(until_ns, last_arrival_ns) - self._start_ns)),
            kept,
            extenders,
            self._start_ns,
            at_ns,
            max(until_ns, last_arrival_ns),
        )

    # ── objects ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _whole_objects(self) -> Iterator[tuple[Json, Span]]:
        yield from self._from_files()
        for place, objects in self._sections("objects"):
            yield from ((obj, self._document.span(*place, "objects", at)) for at, obj in enumerate(objects))

    def _from_files(self) -> Iterator[tuple[Json, Span]]:
        folder = Path(self._document.source.name).parent
        for place, paths in self._sections("cluster"):
            for path in [paths] if isinstance(paths, str) else paths:
                span = self._document.span(*place, "cluster")
                try:
                    for obj in objects_in(str(folder / path)):
                        if isinstance(obj, Malformed):
                            self._complain(str(obj), span)
                        else:
                            yield obj, span
                except UnusableFile as error:
                    self._complain(str(error), span)

    def _from_here(self) -> Iterator[tuple[str, Json, Span]]:
        for kind in ("namespaces", "nodes", "pods"):
            for place, objects in self._sections(kind):
                for index, obj in enumerate(objects):
                    yield kind, obj, self._document.span(*place, kind, index)

    def _whole(self, kind: str, obj: Json) -> Json:
        make: Callable[[Json], Json] = {
            "namespaces": short_forms.namespace,
            "nodes": short_forms.node,
            "pods": lambda one: short_forms.pod(one, scheduler=self._program.name),
        }[kind]
        return make(obj)

    def _read(self, obj: Json, span: Span) -> Namespace | Node | ObservedPod | None:
        try:
            match obj.get("kind"):
                case "Namespace":
                    return wire.namespace(obj)
                case "Node":
                    return wire.node(obj)
                case "Pod":
                    return wire.pod(obj)
                case kind:
                    raise AssertionError(f"a short form of a {kind}")
        except Malformed as error:
            self._complain(str(error), span)
            return None

    def _arrival(self, seen: ObservedPod, obj: Json, at_ns: int, place: int, span: Span) -> Arrival:
        """Pending pods come in the order in which they stand; of those that have no time of creation each is a nanosecond
        younger than the one before it."""
        waits = seen.node is None and not seen.finished
        arrives = obj.get("arrives")
        comes_ns = at_ns if waits else self._start_ns
        if isinstance(arrives, str):
            comes_ns = self._start_ns + _duration_ns(arrives)
        if seen.pod.created_ns == 0:
            seen = replace(seen, pod=replace(seen.pod, created_ns=comes_ns + place))
        return Arrival(comes_ns, seen, span)

    def _check_nodes(self, nodes: Mapping[str, Node]) -> None:
        for place, metrics in self._sections("metrics"):
            for metric, series in metrics.items():
                declared = self._program.metrics.get(metric)
                for node in series if declared is None or of_nodes(declared) else ():
                    if node not in nodes:
                        self._unknown(
                            "node", node, nodes, self._document.span(*place, "metrics", metric, node)
                        )

    # ── values of states ───────────────────────────────────────────────────────────────────────────────────────────

    def _states(self, nodes: Mapping[str, Node]) -> str | None:
        """A test's own values of a state take the place of the file's."""
        tables: dict[str, list[Entry]] = {}
        for place, states in self._sections("state"):
            for name, values in states.items():
                span = self._document.span(*place, "state", name)
                state = self._program.states.get(name)
                if state is None:
                    self._unknown("state", name, self._program.states, span)
                    continue
                try:
                    tables[name] = entries_of(state, values)
                except BadValues as error:
                    self._complain(str(error), self._document.span(*place, "state", name, *error.path))
                    continue
                for key, node, _ in tables[name]:
                    if node != EVERYWHERE and node not in nodes:
                        path = (key, node) if key else (node,)
                        self._unknown("node", node, nodes, self._document.span(*place, "state", name, *path))
        return kept_text(0, tables) if tables else None

    # ── extenders ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _extenders(self, nodes: Mapping[str, Node]) -> dict[str, Canned]:
        """A test's own word on an extender takes the place of the file's."""
        found: dict[str, Canned] = {}
        known = [one.name for one in self._program.extenders]
        for place, extenders in self._sections("extenders"):
            for name, said in extenders.items():
                if name not in known:
                    self._unknown("extender", name, known, self._document.span(*place, "extenders", name))
                for verb in ("filter", "prioritize"):
                    for node in said.get(verb, {}):
                        if node not in nodes:
                            span = self._document.span(*place, "extenders", name, verb, node)
                            self._unknown("node", node, nodes, span)
                peer = Peer(
                    name,
                    url="",
                    filter="filter",
                    prioritize="prioritize",
                    ignorable=said.get("ignorable", False),
                    resources=frozenset(said.get("managedResources", ())),
                )
                found[name] = Canned(
                    peer, said.get("filter", {}), said.get("prioritize", {}), said.get("error")
                )
        return found

    # ── samples ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _polls(self) -> tuple[Callable[[int], Iterator[Poll]], int]:
        """What makes the polls up to a time (ns after the start), and when the last step of the longest series is."""
        series: dict[str, dict[str, list[Step]]] = {}
        for place, metrics in self._sections("metrics"):
            for name, of_one in metrics.items():
                metric = self._program.metrics.get(name)
                if metric is None:
                    self._unknown(
                        "metric", name, self._program.metrics, self._document.span(*place, "metrics", name)
                    )
                    continue
                for node, text in of_one.items():
                    if not of_nodes(metric) and pair_written(node) is None:
                        self._complain(
                            f"`{node}` is no pair of pods: write `namespace/name -> namespace/name`",
                            self._document.span(*place, "metrics", name, node),
                        )
                        continue
                    try:
                        steps = list(series_of(str(text), metric.type, metric.unit))
                    except BadSeries as error:
                        self._complain(str(error), self._document.span(*place, "metrics", name, node))
                        continue
                    series.setdefault(name, {})[node] = steps
        steps_ns = {
            name: self._duration_ns("interval", self._program.metrics[name].every_ns) for name in series
        }
        last_ns = max(
            (steps_ns[name] * (len(steps) - 1) for name, nodes in series.items() for steps in nodes.values()),
            default=0,
        )

        def polls(until_ns: int) -> Iterator[Poll]:
            made = [
                poll
                for name, of_one in series.items()
                for poll in _polls_of(
                    self._program.metrics[name], of_one, self._start_ns, steps_ns[name], until_ns
                )
            ]
            return iter(sorted(made, key=lambda poll: poll.at_ns))

        return polls, last_ns

    # ── reading ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _sections(self, key: str) -> Iterator[tuple[tuple[str | int, ...], Any]]:
        """What the file says, then what the test says."""
        values = self._document.values
        test = values["tests"][self._places[1][1]]
        for place, section in zip(self._places, (values, test), strict=True):
            if key in section:
                yield place, section[key]

    def _word(self, key: str, otherwise: str) -> str:
        words = [value for _, value in self._sections(key)]
        return str(words[-1]) if words else otherwise

    def _span(self, key: str) -> Span:
        places = [place for place, _ in self._sections(key)]
        return self._document.span(*(places[-1] if places else ()), key)

    def _duration_ns(self, key: str, otherwise_ns: int) -> int:
        word = self._word(key, "")
        found = _duration_ns(word) if word else otherwise_ns
        if key == "interval" and found <= 0:
            self._complain("the interval is nothing", self._span(key))
            return 1
        return found

    def _unknown(self, what: str, name: str, known: Iterable[str], span: Span) -> None:
        self._found.append(short_forms.unknown(what, name, known, span))

    def _complain(self, message: str, span: Span) -> None:
        self._found.append(unusable(message, span))


def _around(files: ClusterFiles) -> tuple[Event, ...]:
    return (
        *files.node_objects,
        *(e.BudgetSeen(budget) for budget in files.budgets),
        *(e.PodSetSeen(one) for one in files.pod_sets),
        *(e.StorageSeen(one) for one in files.storage),
        *(e.DeviceObjectSeen(one) for one in files.devices),
    )


def _duration_ns(word: str) -> int:
    found = parse_value(word, Type(Kind.DURATION), None)
    assert isinstance(found, int), f"the schema lets `{word}` pass as a duration"
    return found


def _polls_of(
    metric: Metric, series: Mapping[str, list[Step]], start_ns: int, step_ns: int, until_ns: int
) -> Iterator[Poll]:
    """A series of one value goes on for ever; a longer one ends with its last, which grows old from there on."""
    count = min(until_ns // step_ns + 1, _POLLS_MAX)
    held: dict[NodeName, Sample] = {}
    for index in range(count):
        at_ns = start_ns + index * step_ns
        for node, steps in series.items():
            step = steps[0] if len(steps) == 1 else steps[index] if index < len(steps) else Gap.NONE
            match step:
                case Gap.ENDED:
                    held.pop(NodeName(node), None)
                case Gap.NONE:
                    pass
                case value if value < 0 and metric.type.kind not in (Kind.INT, Kind.FLOAT):
                    held.pop(NodeName(node), None)  # no such size, rate or share: missing, as from any source
                case value:
                    held[NodeName(node)] = Sample(float(value), at_ns)
        yield Poll(at_ns, metric.name, _samples_of(metric, held, at_ns))


def _samples_of(metric: Metric, held: Mapping[NodeName, Sample], at_ns: int) -> MetricSamples:
    """A metric between pods has what came with this poll: a pair that has no value now is not there."""
    if of_nodes(metric):
        return MetricSamples(dict(held), polled_ns=at_ns)
    pairs: MutablePairs = {}
    for key, sample in held.items():
        pair = pair_written(key)
        assert pair is not None, f"`{key}` was let pass as two pods"
        add_pair(pairs, pair, sample.value)
    return MetricSamples({}, polled_ns=at_ns, pairs=pairs)
