"""What a source of samples must be, and how a run of samples becomes an event."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from policysched.cluster.objects import MetricSamples, NodeName, Sample
from policysched.lang.program import Metric
from policysched.lang.types import INT64_MAX, INT64_MIN, Kind
from policysched.lang.units import parse_value, unit_factor
from policysched.schedule.events import SamplesArrived

Wanted = Mapping[str, Mapping[str, Metric]]
"""The metrics that running policies declare: policy name, metric name."""


class SampleSource(Protocol):
    """`run` delivers samples of what is wanted until it is cancelled; `wanted` is asked anew each time, for policies
    come and go."""

    async def run(self, wanted: Callable[[], Wanted], deliver: Callable[[SamplesArrived], None]) -> None: ...

    def has(self, metric: Metric) -> bool:
        """Whether samples of this metric can be expected from here."""
        ...


@dataclass(frozen=True, slots=True)
class RawSamples:
    """One metric as a source has it, by node: a number is in the metric's unit, a text may say its own (`85%`)."""

    values: Mapping[str, float | str]
    at_ns: int


def samples_of(metric: Metric, raw: RawSamples) -> MetricSamples:
    """In the held unit of the metric's type. What is no finite value of the type is left out: it is missing."""
    factor = unit_factor(metric.type, metric.unit)
    assert factor is not None, (
        f"{metric.name} was checked with the unit {metric.unit!r}, which {metric.type} lacks"
    )
    found: dict[NodeName, Sample] = {}
    for node, value in raw.values.items():
        if isinstance(value, str):
            held = parse_value(value.replace(" ", ""), metric.type, metric.unit)
        else:
            held = _times(value, float(factor))
        if isinstance(held, int | float) and math.isfinite(held) and _within(metric.type.kind, held):
            whole = float(held) if metric.type.held_as_float else float(round(held))
            found[NodeName(node)] = Sample(whole, raw.at_ns)
    return MetricSamples(found, polled_ns=raw.at_ns)


def _times(value: float, factor: float) -> float:
    """Infinite where a whole number is longer than a float can be."""
    try:
        return float(value) * factor
    except OverflowError:
        return math.inf


def _within(kind: Kind, held: float) -> bool:
    """Sizes, rates, shares and spans are never below zero, and whole numbers fit into 64 bits."""
    if kind in (Kind.INT, Kind.FLOAT):
        return kind is Kind.FLOAT or INT64_MIN <= held <= INT64_MAX
    return 0 <= held <= (INT64_MAX if kind not in (Kind.RATIO, Kind.BANDWIDTH) else math.inf)
