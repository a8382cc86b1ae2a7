"""The protocol of a metric source, and the conversion of its values to samples."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from policysched.cluster.metric_samples import MetricSamples, Sample
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
    """The consumer of a source. `declared_metrics` and `nodes` are called each time, since policies and nodes change."""

    declared_metrics: Callable[[], DeclaredMetrics]
    nodes: Callable[[], Nodes]
    deliver: Callable[[SamplesArrived], None]


class SampleSource(Protocol):
    """`run` delivers samples of declared metrics until it is cancelled."""

    async def run(self, consumer: SampleConsumer) -> None: ...

    def unsupported_reason(self, metric: Metric) -> str | None:
        """Why this source cannot provide the metric; None if it can."""
        ...


@dataclass(frozen=True, slots=True)
class RawSamples:
    """The values of one metric by node: a number is in the metric's unit, a string may carry its own (`85%`).

    `polled_ns` is the time of the query; `sampled_ns` the times of values that are known to differ from it.
    """

    values: Mapping[str, float | str]
    polled_ns: int
    sampled_ns: Mapping[str, int] = field(default_factory=dict)


def convert_samples(metric: Metric, raw: RawSamples) -> MetricSamples:
    """Converts to the base unit of the metric's type. Values that are not finite or not of the type are dropped."""
    samples: dict[NodeName, Sample] = {}
    convert_into(metric, raw, raw.values.items(), samples)
    return MetricSamples(samples, polled_ns=raw.polled_ns)


def describe_dropped_samples(metric: Metric, raw: RawSamples, samples: MetricSamples) -> str | None:
    """One line about values that `convert_samples` dropped: a misspelt unit, a string that is not a number."""
    return describe_invalid_values(
        metric, {node: raw.values[node] for node in raw.values if NodeName(node) not in samples.values}
    )


def describe_invalid_values(metric: Metric, values: Mapping[str, float | str]) -> str | None:
    """One line about values that are not of the metric's type; None if there are none."""
    examples = [f"{quote_value(value)} ({key})" for key, value in values.items()]
    if not examples:
        return None
    more_text = f" and {len(examples) - _EXAMPLES_MAX} more" if len(examples) > _EXAMPLES_MAX else ""
    return f"metric {metric.name}: not {describe_type(metric.type)}, so missing: {', '.join(examples[:_EXAMPLES_MAX])}{more_text}"


def convert_into(
    metric: Metric, raw: RawSamples, items: Iterable[tuple[str, float | str]], into: dict[NodeName, Sample]
) -> None:
    """Converts some of the values, so that thousands can be processed in batches."""
    convert, at_ns, times_ns = value_converter(metric), raw.polled_ns, raw.sampled_ns
    for node, value in items:
        converted = convert(value)
        if converted is not None:
            # Go's zero time, in the year 1, is out of the range of 64 bits of nanoseconds; 0 is just as old.
            into[NodeName(node)] = Sample(converted, max(0, times_ns.get(node, at_ns)) if times_ns else at_ns)


def value_converter(metric: Metric) -> Callable[[float | str], float | None]:
    """A function from a source's value to the base unit; it returns None unless the value is finite and of the type."""
    factor = unit_factor(metric.type, metric.unit)
    assert factor is not None, (
        f"{metric.name} was checked with the unit {metric.unit!r}, which {metric.type} lacks"
    )
    type_, unit, kind, as_float = metric.type, metric.unit, metric.type.kind, metric.type.is_float64
    factor_float = float(factor)

    def convert(value: float | str) -> float | None:
        converted = (
            parse_value(value.replace(" ", ""), type_, unit)
            if isinstance(value, str)
            else _multiply(value, factor_float)
        )
        if not isinstance(converted, int | float) or not math.isfinite(converted):
            return None
        number = float(converted) if as_float else float(round(converted))
        return number if _in_range(kind, number) else None

    return convert


def _multiply(value: float, factor: float) -> float:
    """Infinite if an integer exceeds the range of a float."""
    try:
        return float(value) * factor
    except OverflowError:
        return math.inf


def _in_range(kind: TypeKind, value: float) -> bool:
    """Sizes, rates, ratios and durations are not negative, and integers fit into 64 bits."""
    if kind in (TypeKind.INT, TypeKind.FLOAT):
        return kind is TypeKind.FLOAT or INT64_MIN <= value <= INT64_MAX
    return 0 <= value <= (INT64_MAX if kind not in (TypeKind.RATIO, TypeKind.BANDWIDTH) else math.inf)
