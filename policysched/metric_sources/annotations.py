"""Samples from node annotations: the metric's `query` is the name of the annotation.

`0.35,2026-11-21T14:00:00Z` is a value and its time, as crane's annotator writes it; the time may also be in seconds since
1970. A value without a time counts as current while it is there, since its age is unknown.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from policysched.lang.ir.declarations import Metric, is_node_metric
from policysched.metric_sources.clock_skew import ClockSkewTracker
from policysched.metric_sources.polling import PollingSource, QueryResult, process_in_batches
from policysched.metric_sources.source import Nodes, RawSamples, SampleSource
from policysched.metric_sources.source_kind import SettingProblem, SourceContext
from policysched.model.identifiers import NodeName

_NS = 1_000_000_000
_TIME_LENGTH_MAX = 40


@dataclass(frozen=True, slots=True)
class AnnotationsSettings:
    """`time_zone`: read times as local times of this zone, whatever zone they claim. crane's default writes Shanghai
    time marked as UTC."""

    kind: ClassVar[str] = "annotations"

    time_zone: str | None = None

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        return cls(values.get("time_zone"))

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> Iterator[SettingProblem]:
        if "time_zone" in values and not _is_time_zone(values["time_zone"]):
            yield ("time_zone",), f"unknown time zone `{values['time_zone']}`"

    def unsupported_reason(self, metric: Metric) -> str | None:
        return unsupported_reason(metric)

    def create(self, context: SourceContext) -> SampleSource:
        client = AnnotationQueryClient(self, now_ns=context.now_ns)
        return PollingSource(client, context.status, now_ns=context.now_ns, random=context.random)


def _is_time_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def unsupported_reason(metric: Metric) -> str | None:
    """Why annotations cannot provide the metric; None if they can."""
    if not is_node_metric(metric):
        return "annotations do not support metrics between pods"
    if metric.join != "node":
        return "annotations belong to nodes: write `join = node`"
    if metric.sampled_at is not None:
        return "the annotation carries the time: remove `sampled_at`"
    return None


class AnnotationQueryClient:
    """A `QueryClient` over the annotations of known nodes. Never fails."""

    def __init__(self, settings: AnnotationsSettings, *, now_ns: Callable[[], int]) -> None:
        self._zone = None if settings.time_zone is None else ZoneInfo(settings.time_zone)
        self._now_ns = now_ns
        self._clock_skew = ClockSkewTracker()

    def unsupported_reason(self, metric: Metric) -> str | None:
        return unsupported_reason(metric)

    def query_for(self, metric: Metric) -> str:
        return metric.query

    def query_text(self, query: str) -> str:
        return query

    async def fetch(self, query: str, nodes: Callable[[], Nodes]) -> QueryResult:
        now_ns = self._now_ns()
        skew = self._clock_skew.begin_query(query, nodes(), now_ns)
        values: dict[str, float | str] = {}
        times_ns: dict[str, int] = {}
        unreadable = 0

        def parse_batch(batch: list[tuple[NodeName, str]]) -> None:
            nonlocal unreadable
            for name, text in batch:
                sample = self.parse_annotation(text)
                if sample is None:
                    unreadable += 1
                    continue
                values[name], at_ns = sample
                if at_ns is not None:
                    times_ns[name] = skew.clamp_ns(name, (values[name], at_ns), at_ns)

        texts = [
            (name, text)
            for name, node in nodes().items()
            if (text := node.annotations.get(query)) is not None
        ]
        await process_in_batches(texts, parse_batch)
        return QueryResult(RawSamples(values, now_ns, times_ns), unreadable=unreadable)

    def parse_annotation(self, text: str) -> tuple[float | str, int | None] | None:
        """The value and its time (None: not given). A value with a unit stays a string."""
        value, comma, time = text.partition(",")
        value = value.strip()
        at_ns = self._time_ns(time.strip()) if comma else None
        if not value or (comma and at_ns is None):
            return None
        try:
            return float(value), at_ns
        except ValueError:
            return value, at_ns

    def _time_ns(self, text: str) -> int | None:
        if not text or len(text) > _TIME_LENGTH_MAX:
            return None
        try:
            seconds = float(text)
        except ValueError:
            return self._calendar_ns(text)
        return int(seconds * _NS) if math.isfinite(seconds) and 0 <= seconds < 1e10 else None

    def _calendar_ns(self, text: str) -> int | None:
        try:
            moment = datetime.fromisoformat(text)
            if self._zone is not None:
                moment = moment.replace(tzinfo=self._zone)
            elif moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            return int(moment.timestamp() * 1_000_000) * 1000
        except (ValueError, OverflowError):
            return None
