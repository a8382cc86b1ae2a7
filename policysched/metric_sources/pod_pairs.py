"""Samples of pairs of pods: which two a series is about, and what flows between them in both directions together.

A pod is a namespace and a name here, and need not exist: a series of an hour ago is about a pod that ended meanwhile and comes
back under its name. A pair with two series of one direction has no usable sample, for any choice between them would be a guess.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from policysched.cluster.samples import MetricSamples, PairEndpoint
from policysched.lang.ir.declarations import Metric
from policysched.metric_sources.source import value_converter

PodPair = tuple[PairEndpoint, PairEndpoint]
"""Who sends and who receives."""

MutablePodPairs = dict[PairEndpoint, dict[PairEndpoint, float | None]]

_PAIR_TEXT = re.compile(r"\s*([^\s/]+)/([^\s/]+)\s*->\s*([^\s/]+)/([^\s/]+)\s*\Z")


@dataclass(frozen=True, slots=True)
class PairLabels:
    """The labels of a series that say who sends and who receives: see `lang.ir.program.Between`."""

    sender: tuple[str, ...]
    receiver: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RawPairs:
    """One metric as a source has it, by sender and receiver: a number is in the metric's unit, a text may say its own. None: there
    are two series. `polled_ns` is when it was asked."""

    values: Mapping[PodPair, float | str | None]
    polled_ns: int


@dataclass(slots=True)
class PairSeriesJoin:
    """Values by pair as the series are gone through."""

    labels: PairLabels
    values: dict[PodPair, float | str | None] = field(default_factory=dict)
    duplicated: int = 0
    unmatched: int = 0
    unreadable: int = 0

    def add_series(self, labels: Mapping[str, Any], value: float) -> None:
        sender, receiver = (
            pod_of_series(labels, self.labels.sender),
            pod_of_series(labels, self.labels.receiver),
        )
        if sender is None or receiver is None:
            self.unmatched += 1
        elif (sender, receiver) not in self.values:
            self.values[sender, receiver] = value
        elif self.values[sender, receiver] is not None:
            self.duplicated += 1
            self.values[sender, receiver] = None


def pod_of_series(labels: Mapping[str, Any], names: tuple[str, ...]) -> PairEndpoint | None:
    """The pod that a series names under these labels; None where it names none (traffic from outside the cluster)."""
    texts = [labels.get(name) for name in names]
    if len(texts) == 1 and isinstance(texts[0], str):
        namespace, _, name = texts[0].partition("/")
        texts = [namespace, name]
    match texts:
        case [str(namespace), str(name)] if namespace and name:
            return namespace, name
        case _:
            return None


def parse_pair(key: str) -> PodPair | None:
    """What a person writes for two pods, `namespace/name -> namespace/name`; None where it is something else."""
    match = _PAIR_TEXT.match(key)
    if match is None:
        return None
    namespace, name, other_namespace, other = match.groups()
    return (namespace, name), (other_namespace, other)


def convert_pair_samples(metric: Metric, raw: RawPairs) -> MetricSamples:
    pairs: MutablePodPairs = {}
    convert_pairs(metric, raw.values.items(), pairs)
    return MetricSamples({}, polled_ns=raw.polled_ns, pairs=pairs)


def convert_pairs(
    metric: Metric, some: Iterable[tuple[PodPair, float | str | None]], into: MutablePodPairs
) -> None:
    """In the held unit, both directions as one: what is not usable of one of them makes the pair unusable."""
    held: Callable[[float | str], float | None] = value_converter(metric)
    for pair, value in some:
        add_pair(into, pair, None if value is None else held(value))


def add_pair(into: MutablePodPairs, pair: PodPair, value: float | None) -> None:
    """One direction of a pair more."""
    sender, receiver = pair
    before = into.setdefault(sender, {}).get(receiver, 0.0)
    both = None if value is None or before is None else before + value
    into[sender][receiver] = both
    into.setdefault(receiver, {})[sender] = both


def count_unusable_pairs(raw: RawPairs, samples: MetricSamples) -> int:
    """How many pairs there are samples of that cannot be used, doubled ones aside."""
    found = {frozenset(pair) for pair, value in raw.values.items() if value is not None}
    return sum(samples.pairs[(two := tuple(pair))[0]][two[-1]] is None for pair in found)
