"""Samples of pairs of pods: the sum of both directions between the two pods of a series.

A pod is a namespace and a name here and need not exist: a series of an hour ago may be of a pod that was recreated under
its name. A pair with two series of one direction has no usable sample, since choosing one would be a guess.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from policysched.cluster.metric_samples import MetricSamples, PairEndpoint
from policysched.lang.ir.declarations import Metric
from policysched.metric_sources.source import value_converter

PodPair = tuple[PairEndpoint, PairEndpoint]
"""Sender and receiver."""

PodPairSet = set[frozenset[PairEndpoint]]
MutablePodPairs = dict[PairEndpoint, dict[PairEndpoint, float | None]]

_PAIR_TEXT = re.compile(r"\s*([^\s/]+)/([^\s/]+)\s*->\s*([^\s/]+)/([^\s/]+)\s*\Z")


@dataclass(frozen=True, slots=True)
class PairLabels:
    """The labels of a series with its sender and receiver: see `lang.ir.program.PairJoinSpec`."""

    sender: tuple[str, ...]
    receiver: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RawPairs:
    """The values of one metric by sender and receiver: a number is in the metric's unit, a string may carry its own. None:
    there are two series. `polled_ns` is the time of the query."""

    values: Mapping[PodPair, float | str | None]
    polled_ns: int


@dataclass(slots=True)
class PairSeriesJoin:
    """Values by pair, accumulated over the series."""

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
    """The pod in these labels of a series; None if there is none (traffic from outside the cluster)."""
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
    """Parses `namespace/name -> namespace/name`; None for anything else."""
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
    """Adds both directions, in the base unit; an unusable value in one direction makes the pair unusable."""
    convert: Callable[[float | str], float | None] = value_converter(metric)
    for pair, value in some:
        add_pair(into, pair, None if value is None else convert(value))


def add_pair(into: MutablePodPairs, pair: PodPair, value: float | None) -> None:
    """Adds one direction of a pair."""
    sender, receiver = pair
    before = into.setdefault(sender, {}).get(receiver, 0.0)
    total = None if value is None or before is None else before + value
    into[sender][receiver] = total
    into.setdefault(receiver, {})[sender] = total


def find_unusable_pairs(
    samples: MetricSamples, some: Iterable[tuple[PodPair, float | str | None]]
) -> PodPairSet:
    """Which of these have unusable samples, without those that have two series; both directions are one pair."""
    return {
        frozenset(pair)
        for pair, value in some
        if value is not None and samples.pairs[pair[0]][pair[1]] is None
    }
