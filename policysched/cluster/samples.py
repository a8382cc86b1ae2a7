"""Samples of metrics and rows of policy state, as rules read them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policysched.lang.ir.expr import RecoveryCondition
from policysched.model.identifiers import NodeName


@dataclass(frozen=True, slots=True)
class Sample:
    """A metric's value for one node, in the held unit of the metric's type, and when it was true (ns)."""

    value: float
    at_ns: int


ALL_NODES = NodeName("")
"""Under which a state keeps what is the same on all nodes. No node is called so."""


@dataclass(frozen=True, slots=True, eq=False)
class StateRow:
    """A state's values for one key, by node; of a state that is the same on all nodes the one under `ALL_NODES`. Never changed:
    what feeds a value makes another row, and two are the same row only where they are the same object."""

    values: Mapping[NodeName, float]


PairEndpoint = tuple[str, str]
"""A pod as the samples of a metric between pods call it: its namespace, and its name or what else the metric's `key` says."""

PairSamples = Mapping[PairEndpoint, Mapping[PairEndpoint, float | None]]
"""What a metric has between two pods, both directions added up, in the held unit: `pairs[a][b]` equals `pairs[b][a]`. None: there
are samples of the two, and they cannot be used."""


@dataclass(frozen=True, slots=True)
class MetricSamples:
    """All samples of one metric. What is NaN, infinite, doubled or outside its type was left out on arrival.
    `polled_ns`: the last good poll. `assumed`: what is added to a node's sample for the pods that came since, in the held
    unit. `recovering_until_ns`: the nodes that crossed a limit, and until when (ns) they are held for it. `state_rows` are those of a `state`, by key; it has nothing else,
    and a metric between pods nothing but `pairs`.
    `assumed` and `state_rows` alone are alive: an amount changes when pods come to the node or leave it, a row when its key is fed.
    """

    values: Mapping[NodeName, Sample]
    polled_ns: int
    assumed: Mapping[NodeName, int | float] = field(default_factory=dict)
    recovering_until_ns: Mapping[RecoveryCondition, Mapping[NodeName, int]] = field(default_factory=dict)
    state_rows: Mapping[str, StateRow] = field(default_factory=dict)
    pairs: PairSamples = field(default_factory=dict)


Samples = Mapping[str, MetricSamples]
"""By the name of the metric or state; each policy has its own."""
