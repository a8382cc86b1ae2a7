"""Node usage from the metrics.k8s.io API (metrics-server and compatible ones): `query = "cpu"` or `"memory"`.

https://kubernetes.io/docs/tasks/debug/debug-cluster/resource-metrics-pipeline/. The time of a sample is its `timestamp`.
The request goes through the API server with the permissions of our ServiceAccount.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, ClassVar, Self

import orjson

from policysched.lang.ir.declarations import Metric, is_node_metric
from policysched.lang.types.kinds import TypeKind
from policysched.lang.types.units import unit_factor
from policysched.metric_sources.clock_skew import ClockSkewTracker
from policysched.metric_sources.poll_status import PollError
from policysched.metric_sources.polling import FetchBody, PollingSource, QueryResult, process_in_batches
from policysched.metric_sources.source import Nodes, RawSamples, SampleSource
from policysched.metric_sources.source_kind import ApiGet, SettingProblem, SourceContext
from policysched.model.identifiers import NodeName
from policysched.model.quantity import parse_quantity

PATH = "/apis/metrics.k8s.io/v1beta1/nodes"

_RESOURCES = {"cpu": (TypeKind.CPU, 1000), "memory": (TypeKind.BYTES, 1)}
"""By resource: the type, and the number of base units of that type in one core or byte."""

_QUANTITY_LENGTH_MAX = 64


@dataclass(frozen=True, slots=True)
class MetricsApiSettings:
    kind: ClassVar[str] = "metrics-api"

    timeout_s: float = 10.0

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        return cls(values.get("timeout_s", 10.0))

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> Iterator[SettingProblem]:  # noqa: ARG003
        yield from ()

    def unsupported_reason(self, metric: Metric) -> str | None:
        return unsupported_reason(metric)

    def create(self, context: SourceContext) -> SampleSource:
        fetch = _node_metrics_fetcher(context.api_get, self.timeout_s)
        client = MetricsApiQueryClient(fetch, now_ns=context.now_ns)
        return PollingSource(client, context.status, now_ns=context.now_ns, random=context.random)


def _node_metrics_fetcher(api_get: ApiGet, timeout_s: float) -> FetchBody:
    async def fetch() -> bytes:
        status, body = await api_get(PATH, timeout_s)
        if status in (401, 403):
            raise PollError(
                "credentials",
                f"the API server returned {status}: apply deploy/metrics-api.yaml to grant access",
            )
        if status == 404:
            raise PollError(
                "status", "the API server returned 404: the metrics API is not installed in this cluster"
            )
        if status != 200:
            raise PollError("status", f"the API server returned {status}")
        return body

    return fetch


@dataclass(frozen=True, slots=True)
class MetricsApiQuery:
    """`factor`: how many of the metric's units one core or byte is."""

    resource: str
    factor: Fraction


def unsupported_reason(metric: Metric) -> str | None:
    """Why this API cannot provide the metric; None if it can."""
    if not is_node_metric(metric):
        return "the metrics API does not support metrics between pods"
    resource = _RESOURCES.get(metric.query)
    if resource is None:
        return f'the metrics API has "cpu" and "memory", not `{metric.query}`'
    if metric.type.kind is not resource[0]:
        return f"the metrics API's {metric.query} is of type {resource[0].value}, not {metric.type}"
    if metric.join != "node":
        return "the metrics API names nodes: write `join = node`"
    if metric.sampled_at is not None:
        return "the metrics API carries the time: remove `sampled_at`"
    return None


class MetricsApiQueryClient:
    """A `QueryClient`. `fetch` returns the list of all nodes; the two possible queries do not share a response."""

    def __init__(self, fetch: FetchBody, *, now_ns: Callable[[], int]) -> None:
        self._fetch = fetch
        self._now_ns = now_ns
        self._clock_skew = ClockSkewTracker()

    def unsupported_reason(self, metric: Metric) -> str | None:
        return unsupported_reason(metric)

    def query_for(self, metric: Metric) -> MetricsApiQuery:
        factor = unit_factor(metric.type, metric.unit)
        assert factor is not None, f"{metric.name} was checked with the unit {metric.unit!r}"
        return MetricsApiQuery(metric.query, Fraction(_RESOURCES[metric.query][1]) / factor)

    def query_text(self, query: MetricsApiQuery) -> str:
        return f"{PATH} {query.resource}"

    async def fetch(self, query: MetricsApiQuery, nodes: Callable[[], Nodes]) -> QueryResult:
        sent_ns = self._now_ns()
        items = _items(await self._fetch())
        node_names = nodes()
        skew = self._clock_skew.begin_query(query, node_names, sent_ns)
        values: dict[str, float | str] = {}
        times_ns: dict[str, int] = {}
        unmatched = unreadable = 0

        def parse_batch(batch: list[Any]) -> None:
            nonlocal unmatched, unreadable
            for item in batch:
                sample = _parse_item(item, query)
                if sample is None:
                    unreadable += 1
                    continue
                name, value, at_ns = sample
                if name not in node_names:
                    unmatched += 1
                    continue
                values[name], times_ns[name] = value, skew.clamp_ns(name, (value, at_ns), at_ns)

        await process_in_batches(items, parse_batch)
        return QueryResult(RawSamples(values, sent_ns, times_ns), unmatched=unmatched, unreadable=unreadable)


def _items(body: bytes) -> list[Any]:
    try:
        response = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise PollError("malformed", "the response is not JSON") from None
    items = response.get("items") if isinstance(response, dict) else None
    if not isinstance(items, list):
        raise PollError("malformed", "the response is not a NodeMetricsList")
    return items


def _parse_item(item: Any, query: MetricsApiQuery) -> tuple[NodeName, float, int] | None:
    """(node, value in the metric's unit, time of the sample)."""
    try:
        name, text, time = item["metadata"]["name"], item["usage"][query.resource], item["timestamp"]
        if not isinstance(name, str) or not isinstance(text, str) or len(text) > _QUANTITY_LENGTH_MAX:
            return None
        at = datetime.fromisoformat(time)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return NodeName(name), float(parse_quantity(text) * query.factor), int(at.timestamp()) * 10**9
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
