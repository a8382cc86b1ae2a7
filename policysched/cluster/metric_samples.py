"""Metric samples and policy state, as rules read them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policysched.lang.ir.decay import Decay
from policysched.lang.ir.recovery_condition import RecoveryCondition
from policysched.model.identifiers import NodeName


@dataclass(frozen=True, slots=True)
class Sample:
    """A metric's value for one node, in the stored unit of the metric's type, and its timestamp
    (ns)."""

    value: float
    at_ns: int


ALL_NODES = NodeName("")
"""Key of a state value that is the same on all nodes. Not a valid node name."""


@dataclass(frozen=True, slots=True, eq=False)
class StateRow:
    """The values of a state for one key, by node; a state that is the same on all nodes has one
    entry, `ALL_NODES`.

    Immutable: feeding a value creates a new row. Rows compare by identity. `changes_ns`: when decay
    replaces it by another row; None: never."""

    values: Mapping[NodeName, float]
    changes_ns: int | None = None

    def at(self, _now_ns: int) -> "StateRow":
        return self


TimedValue = tuple[float, int]
"""A value and when it was updated (ns)."""


class DecayingStateRow:
    """The values of a state with `half_life` for one key, by node; `at` is what they are at a time.

    Within a step of the decay, and once all of them are at `start`, it is the same row, so that evaluations are shared.
    """

    __slots__ = ("_current", "_from_ns", "decay", "timed_values")

    def __init__(self, timed_values: Mapping[NodeName, TimedValue], decay: Decay) -> None:
        self.timed_values = timed_values
        self.decay = decay
        self._from_ns = 0
        self._current: StateRow | None = None

    def at(self, now_ns: int) -> StateRow:
        current = self._current
        if (
            current is None
            or now_ns < self._from_ns
            or (current.changes_ns is not None and now_ns >= current.changes_ns)
        ):
            decay = self.decay
            values = {
                node: decay.value_at(value, updated_ns, now_ns)
                for node, (value, updated_ns) in self.timed_values.items()
            }
            moving = any(value != decay.start for value in values.values())
            current = self._current = StateRow(values, decay.next_step_ns(now_ns) if moving else None)
            self._from_ns = now_ns - now_ns % decay.step_ns
        return current


PairEndpoint = tuple[str, str]
"""A pod in the samples of a pair metric: its namespace, and its name or the value of the metric's
`key`."""

PairSamples = Mapping[PairEndpoint, Mapping[PairEndpoint, float | None]]
"""Values of a pair metric, both directions added up, in the stored unit: `pairs[a][b]` equals
`pairs[b][a]`. None: the samples of the pair cannot be used."""


@dataclass(frozen=True, slots=True)
class MetricSamples:
    """All samples of one metric. Values that are NaN, infinite, duplicate or out of range are
    dropped on arrival.

    `polled_ns`: time of the last successful poll. `assumed`: load added to a node's sample for pods
    placed since, in the stored unit. `recovering_until_ns`: nodes that crossed a limit, and when
    (ns) their recovery ends. `state_rows`: rows of a `state` by key; a state has nothing else, and
    a pair metric has only `pairs`. Only `assumed` and `state_rows` change after construction: when
    pods are placed or removed, and when a key is fed.
    """

    values: Mapping[NodeName, Sample]
    polled_ns: int
    assumed: Mapping[NodeName, int | float] = field(default_factory=dict)
    recovering_until_ns: Mapping[RecoveryCondition, Mapping[NodeName, int]] = field(default_factory=dict)
    state_rows: Mapping[str, StateRow | DecayingStateRow] = field(default_factory=dict)
    pairs: PairSamples = field(default_factory=dict)


Samples = Mapping[str, MetricSamples]
"""Samples by the name of the metric or state, per policy."""
