"""Counters, gauges and histograms, rendered in Prometheus' text format.

Metrics that kube-scheduler has too keep its names (`scheduler_*`), so that dashboards keep working; others are
`policysched_*`. Format: text/plain; version=0.0.4 (prometheus.io/docs/instrumenting/exposition_formats).
`serve.server` serves the text at `/metrics`; `runtime.telemetry` and `extender.telemetry` fill the registry.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[tuple[str, str], ...]


def exponential_buckets(first: float, factor: float, count: int) -> tuple[float, ...]:
    """Bucket bounds as of Prometheus' ExponentialBuckets."""
    return tuple(first * factor**i for i in range(count))


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric for rendering: `samples` are (suffix, labels, value)."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Sequence[tuple[str, Labels, float]]


class Counter:
    """A counter, by label values."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self._help = help_text
        self._labels = tuple(labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, amount: float, *values: str) -> None:
        assert amount >= 0, f"{self.name} cannot decrease by {amount}"
        assert len(values) == len(self._labels), f"{self.name} has labels {self._labels}, not {values}"
        self._values[values] = self._values.get(values, 0.0) + amount

    def family(self) -> MetricFamily:
        samples = [
            ("", tuple(zip(self._labels, values, strict=True)), n) for values, n in self._values.items()
        ]
        return MetricFamily(self.name, "counter", self._help, samples)


@dataclass(slots=True)
class _Buckets:
    counts: list[int]
    total: float = 0.0
    count: int = 0


class Histogram:
    """A histogram with upper `bounds` (ascending, without infinity), by label values."""

    def __init__(
        self, name: str, help_text: str, bounds: Sequence[float], labels: Sequence[str] = ()
    ) -> None:
        assert list(bounds) == sorted(set(bounds)), f"bounds of {name} out of order: {bounds}"
        self.name = name
        self._help = help_text
        self._bounds = tuple(bounds)
        self._labels = tuple(labels)
        self._values: dict[tuple[str, ...], _Buckets] = {}

    def observe(self, value: float, *values: str) -> None:
        assert len(values) == len(self._labels), f"{self.name} has labels {self._labels}, not {values}"
        buckets = self._values.get(values)
        if buckets is None:
            buckets = self._values[values] = _Buckets([0] * (len(self._bounds) + 1))
        buckets.counts[bisect_left(self._bounds, value)] += 1
        buckets.total += value
        buckets.count += 1

    def keep_only(self, label: str, values: Container[str]) -> None:
        """Drop the series with another value of the label."""
        at = self._labels.index(label)
        self._values = {labels: buckets for labels, buckets in self._values.items() if labels[at] in values}

    def family(self) -> MetricFamily:
        samples: list[tuple[str, Labels, float]] = []
        for values, buckets in self._values.items():
            labels = tuple(zip(self._labels, values, strict=True))
            below = 0
            for bound, count in zip((*self._bounds, math.inf), buckets.counts, strict=True):
                below += count
                samples.append(("_bucket", (*labels, ("le", _number(bound))), below))
            samples += [("_sum", labels, buckets.total), ("_count", labels, buckets.count)]
        return MetricFamily(self.name, "histogram", self._help, samples)


def gauge_family(name: str, help_text: str, values: Mapping[Labels, float]) -> MetricFamily:
    """A gauge from current values."""
    return MetricFamily(name, "gauge", help_text, [("", labels, value) for labels, value in values.items()])


def counter_family(name: str, help_text: str, values: Mapping[Labels, float]) -> MetricFamily:
    """A counter whose totals are kept elsewhere."""
    return MetricFamily(name, "counter", help_text, [("", labels, value) for labels, value in values.items()])


@dataclass(slots=True)
class MetricRegistry:
    """The content of `/metrics`: instruments that are updated by events, and collectors that run at each scrape."""

    instruments: list[Counter | Histogram] = field(default_factory=list)
    collectors: list[Callable[[], Iterable[MetricFamily]]] = field(default_factory=list)

    def counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
        counter = Counter(name, help_text, labels)
        self.instruments.append(counter)
        return counter

    def histogram(
        self, name: str, help_text: str, bounds: Sequence[float], labels: Sequence[str] = ()
    ) -> Histogram:
        histogram = Histogram(name, help_text, bounds, labels)
        self.instruments.append(histogram)
        return histogram

    def render(self) -> str:
        # Collectors first: they may update instruments.
        families = [family for collect in self.collectors for family in collect()]
        families += [instrument.family() for instrument in self.instruments]
        names = [family.name for family in families]
        assert len(set(names)) == len(names), f"duplicate metric name: {sorted(names)}"
        return "".join(map(render_family, families))


def render_family(family: MetricFamily) -> str:
    lines = [f"# HELP {family.name} {_help(family.help)}", f"# TYPE {family.name} {family.type}"]
    for suffix, labels, value in family.samples:
        inner = ",".join(f'{name}="{_escape(text)}"' for name, text in labels)
        lines.append(f"{family.name}{suffix}{f'{{{inner}}}' if inner else ''} {_number(value)}")
    return "\n".join(lines) + "\n"


def _help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
