"""What a source of samples must be, and how what it brings becomes an event."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from policysched.cluster.samples import MetricSamples, Sample
from policysched.lang.check.dimensions import describe_type
from policysched.lang.ir.declarations import Metric
from policysched.lang.types.kinds import TypeKind
from policysched.lang.types.units import parse_value, unit_factor
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from policysched.model.quantity import INT64_MAX, INT64_MIN
from policysched.scheduler.events import SamplesArrived
from policysched.text.quote_value import quote_value

DeclaredMetrics = Mapping[str, Mapping[str, Metric]]
"""The metrics that running policies declare: policy name, metric name."""

Nodes = Mapping[NodeName, Node]

_EXAMPLES_MAX = 3


@dataclass(frozen=True, slots=True)
class SampleConsumer:
    """Whom a source works for. `declared_metrics` and `nodes` are asked anew each time, for policies and nodes come and go."""

    declared_metrics: Callable[[], DeclaredMetrics]
    nodes: Callable[[], Nodes]
    deliver: Callable[[SamplesArrived], None]


class SampleSource(Protocol):
    """`run` delivers samples of what is wanted until it is cancelled."""

    async def run(self, consumer: SampleConsumer) -> None: ...

    def unsupported_reason(self, metric: Metric) -> str | None:
        """Why samples of this metric cannot be expected from here; None where they can."""
        ...


@dataclass(frozen=True, slots=True)
class RawSamples:
    """One metric as a source has it, by node: a number is in the metric's unit, a text may say its own (`85%`).

    `polled_ns` is when it was asked; `sampled_ns` when the values of some nodes were true, where that is known and another time.
    """

    values: Mapping[str, float | str]
    polled_ns: int
    sampled_ns: Mapping[str, int] = field(default_factory=dict)


def convert_samples(metric: Metric, raw: RawSamples) -> MetricSamples:
    """In the held unit of the metric's type. What is no finite value of the type is left out: it is missing."""
    found: dict[NodeName, Sample] = {}
    convert_into(metric, raw, raw.values.items(), found)
    return MetricSamples(found, polled_ns=raw.polled_ns)


def describe_dropped_samples(metric: Metric, raw: RawSamples, found: MetricSamples) -> str | None:
    """One line about what `convert_samples` left out: a misspelt unit, a text that is no number."""
    return describe_invalid_values(
        metric, {node: raw.values[node] for node in raw.values if NodeName(node) not in found.values}
    )


def describe_invalid_values(metric: Metric, values: Mapping[str, float | str]) -> str | None:
    """One line about what is none of the metric's type, by whose it is."""
    lost = [f"{quote_value(value)} ({whose})" for whose, value in values.items()]
    if not lost:
        return None
    more = f" and {len(lost) - _EXAMPLES_MAX} more" if len(lost) > _EXAMPLES_MAX else ""
    return f"metric {metric.name}: not {describe_type(metric.type)}, so missing: {', '.join(lost[:_EXAMPLES_MAX])}{more}"


def convert_into(
    metric: Metric, raw: RawSamples, some: Iterable[tuple[str, float | str]], into: dict[NodeName, Sample]
) -> None:
    """The same for some of the values, so that thousands can be taken a few at a time."""
    held, at_ns, times_ns = value_converter(metric), raw.polled_ns, raw.sampled_ns
    for node, value in some:
        found = held(value)
        if found is not None:
            # Go's zero time is in the year 1, which 64 bits of nanoseconds do not reach. It is as old as can be either way.
            into[NodeName(node)] = Sample(found, max(0, times_ns.get(node, at_ns)) if times_ns else at_ns)


def value_converter(metric: Metric) -> Callable[[float | str], float | None]:
    """What makes a source's value one in the held unit; None of what is no finite value of the metric's type."""
    factor = unit_factor(metric.type, metric.unit)
    assert factor is not None, (
        f"{metric.name} was checked with the unit {metric.unit!r}, which {metric.type} lacks"
    )
    type_, unit, kind, as_float = metric.type, metric.unit, metric.type.kind, metric.type.is_float64
    held_units = float(factor)

    def held(value: float | str) -> float | None:
        found = (
            parse_value(value.replace(" ", ""), type_, unit)
            if isinstance(value, str)
            else _multiply(value, held_units)
        )
        if not isinstance(found, int | float) or not math.isfinite(found):
            return None
        number = float(found) if as_float else float(round(found))
        return number if _in_range(kind, number) else None

    return held


def _multiply(value: float, factor: float) -> float:
    """Infinite where a whole number is longer than a float can be."""
    try:
        return float(value) * factor
    except OverflowError:
        return math.inf


def _in_range(kind: TypeKind, held: float) -> bool:
    """Sizes, rates, shares and spans are never below zero, and whole numbers fit into 64 bits."""
    if kind in (TypeKind.INT, TypeKind.FLOAT):
        return kind is TypeKind.FLOAT or INT64_MIN <= held <= INT64_MAX
    return 0 <= held <= (INT64_MAX if kind not in (TypeKind.RATIO, TypeKind.BANDWIDTH) else math.inf)
