"""One state of a policy: its values by key and node, bounded by dropping, and the rows that rules read."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from policysched.cluster.metric_samples import DecayingStateRow, StateRow, TimedValue
from policysched.evaluate.scalar.eval_context import ScalarFunction
from policysched.lang.ir.arithmetic import clamp_finite
from policysched.lang.ir.declarations import StateSpec
from policysched.model.identifiers import NodeName
from policysched.model.pod_status import ContainerEvent
from policysched.scheduler.policies.state_namespaces import StateNamespaces

KEY_CHARS_MAX = 1024
"""Characters of a key: an annotation may have 256 KiB, and the key is saved with every value."""

_VALUES_PER_STEP = 2_000

StateEntry = tuple[str, NodeName, float] | tuple[str, NodeName, float, int]
"""A key, a node and the value there; with `half_life` also when it was updated (ns)."""


@dataclass(slots=True)
class StateTable:
    """Values of one state, least recently updated first. `rows` is the view that rules read."""

    state: StateSpec
    key: ScalarFunction
    value: ScalarFunction
    when: ScalarFunction | None
    values: dict[tuple[str, NodeName], TimedValue] = field(default_factory=dict)
    rows: dict[str, StateRow | DecayingStateRow] = field(default_factory=dict)
    dropped_count: int = 0
    long_key_count: int = 0
    namespaces: StateNamespaces = field(default_factory=StateNamespaces)

    def matches(self, event: ContainerEvent) -> bool:
        match self.state.trigger:
            case "any":
                return True
            case "failed":
                return event.is_pod_event
            case "either":
                return not event.is_pod_event
            case "started" | "terminated" as word:
                return not event.is_pod_event and (word == "terminated") is event.terminated

    def update(self, key: str, node: NodeName, value: float, at_ns: int, namespace: str) -> None:
        before, updated_ns = self.values.pop((key, node), (self.state.start, 0))
        at_ns = max(at_ns, updated_ns)
        if self.state.decay is not None:
            before = self.state.decay.value_at(before, updated_ns, at_ns)
        self.namespaces.updated((key, node), namespace)
        self._put(key, node, clamp_finite(self.state.keep * before + (1 - self.state.keep) * value), at_ns)

    def load(self, entries: Iterable[StateEntry], now_ns: int) -> None:
        """Load saved values and build each row once; `update` copies the row for each value. A value without a time
        is of `now_ns`."""
        for key, node, value, *at_ns in entries:
            if len(key) > KEY_CHARS_MAX:
                self.long_key_count += 1
                continue
            self.values.pop((key, node), None)
            self.values[key, node] = value, min(at_ns[0], now_ns) if at_ns else now_ns
        beyond = max(0, len(self.values) - self.state.entries_max)
        for oldest in list(islice(self.values, beyond)):
            del self.values[oldest]
        self.dropped_count += beyond
        self.namespaces = StateNamespaces(self.values)
        rows: dict[str, dict[NodeName, TimedValue]] = {}
        for (key, node), timed in self.values.items():
            rows.setdefault(key, {})[node] = timed
        self.rows = {key: self._row(row) for key, row in rows.items()}

    def drop_decayed_in_steps(self, now_ns: int) -> Iterator[None]:
        """Forget values that decay has brought back to `start`, in steps of some thousand values."""
        decay, visited = self.state.decay, 0
        for key in () if decay is None else list(self.rows):
            row = self.rows.get(key)  # which can change between the steps
            if decay is None or not isinstance(row, DecayingStateRow):
                continue
            decayed = [
                node
                for node, (value, updated_ns) in row.timed_values.items()
                if decay.value_at(value, updated_ns, now_ns) == decay.start
            ]
            if decayed:
                self._drop(key, decayed)
            visited += len(row.timed_values)
            if visited >= _VALUES_PER_STEP:
                visited = 0
                yield

    def entries(self) -> Iterator[StateEntry]:
        """The values to save, the most recently updated first."""
        for (key, node), (value, updated_ns) in reversed(self.values.items()):
            yield (key, node, value) if self.state.decay is None else (key, node, value, updated_ns)

    def _row(self, values: Mapping[NodeName, TimedValue]) -> StateRow | DecayingStateRow:
        if self.state.decay is not None:
            return DecayingStateRow(values, self.state.decay)
        return StateRow({node: value for node, (value, _) in values.items()})

    def _put(self, key: str, node: NodeName, value: float, at_ns: int) -> None:
        self.values[key, node] = value, at_ns
        match self.rows.get(key):
            case None:
                self.rows[key] = self._row({node: (value, at_ns)})
            case DecayingStateRow(timed_values=timed_values):
                self.rows[key] = self._row({**timed_values, node: (value, at_ns)})
            case StateRow(values=values):
                self.rows[key] = StateRow({**values, node: value})
        if len(self.values) > self.state.entries_max:
            key, node = self.namespaces.next_to_drop()
            self._drop(key, [node])
            self.dropped_count += 1

    def _drop(self, key: str, nodes: Iterable[NodeName]) -> None:
        for node in nodes:
            del self.values[key, node]
            self.namespaces.dropped((key, node))
        row = self.rows[key]
        node_names: Collection[NodeName] = row.values if isinstance(row, StateRow) else row.timed_values
        remaining = {name: self.values[key, name] for name in node_names if (key, name) in self.values}
        if remaining:
            self.rows[key] = self._row(remaining)
        else:
            del self.rows[key]
