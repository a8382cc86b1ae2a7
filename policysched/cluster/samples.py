"""Metric samples and policy state, as rules read them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policysched.lang.ir.expr import RecoveryCondition
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

    Immutable: feeding a value creates a new row. Rows compare by identity."""

    values: Mapping[NodeName, float]


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
    state_rows: Mapping[str, StateRow] = field(default_factory=dict)
    pairs: PairSamples = field(default_factory=dict)


Samples = Mapping[str, MetricSamples]
"""Samples by the name of the metric or state, per policy."""
