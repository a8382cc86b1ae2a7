"""Checks of a policy against the operator's settings: metrics that no source serves, unknown extenders, a
name that is not allowed, and with `live`
the current responses of the servers to the metrics' queries.

The nodes are not known here. Of a join only the label is checked: whether the series have it, and whether two series have
the same value. An unreachable server is not a fault of the policy and ends the run.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator

from policysched import __version__
from policysched.config.settings import Settings
from policysched.daemon.extender_caller import extender_capabilities
from policysched.daemon.sample_sources import unserved_reason_lookup
from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.ir.declarations import Metric, PairJoinSpec, is_node_metric
from policysched.lang.ir.program import Program
from policysched.lint.linter import LiveQueryFailed
from policysched.metric_sources.poll_status import PollError
from policysched.metric_sources.prometheus_response import parse_response, parse_series
from policysched.metric_sources.prometheus_transport import (
    HttpConnectionPool,
    PrometheusHttpTransport,
    PrometheusSettings,
)
from policysched.metric_sources.router import source_name_for
from policysched.scheduler.policies.extender_capabilities import unusable_extenders
from policysched.scheduler.policies.policy_names import disallowed_name
from policysched.text import Diagnostic

_POLICY_FAULTS = frozenset({"query", "wrong_type"})
"""Kinds of poll errors that the query causes."""


class SettingsChecks:
    """`live`: also query the servers."""

    def __init__(self, settings: Settings, *, live: bool) -> None:
        self._samples = settings.samples
        self._unserved_reason = unserved_reason_lookup(settings)
        self._extenders = extender_capabilities(settings.extenders)
        self._permissions = settings.permissions
        self._live = live
        self._labels_cache: dict[tuple[str, str], list[dict[str, object]] | PollError] = {}

    def findings(self, program: Program) -> Iterator[Diagnostic]:
        """Raises LiveQueryFailed."""
        for metric in program.metrics.values():
            yield from self._metric_findings(metric)
        yield from unusable_extenders(program, self._extenders)
        yield from disallowed_name(program, self._permissions)

    def _metric_findings(self, metric: Metric) -> Iterator[Diagnostic]:
        reason = self._unserved_reason(metric)
        if reason is not None:
            message = f"`{metric.name}` would have no value on any node: {reason}"
            yield make_diagnostic("PS902", message, metric.span, label="no source serves this metric")
        elif self._live:
            samples = self._samples
            name = source_name_for(metric, samples.sources, samples.default)
            source = samples.sources.get(name) if name is not None else None
            if name is not None and isinstance(source, PrometheusSettings):
                yield from self._query_findings(metric, metric.query, name, source)
                if metric.sampled_at is not None:
                    yield from self._query_findings(metric, metric.sampled_at, name, source)

    def _query_findings(
        self, metric: Metric, query: str, name: str, source: PrometheusSettings
    ) -> Iterator[Diagnostic]:
        series = self._query_labels(query, name, source)
        if isinstance(series, PollError):
            if series.kind not in _POLICY_FAULTS:
                raise LiveQueryFailed(f"source `{name}`: {series}")
            yield make_diagnostic(
                "PS904",
                f"the query of `{metric.name}` fails on `{name}`: {series}",
                metric.span,
                label=f"queries `{query}`",
            )
            return
        names = join_labels(metric.join)
        label = "`, `".join(names)
        values = Counter(
            ", ".join(str(labels[name]) for name in names) for labels in series if labels.keys() >= set(names)
        )
        if not values:
            of_labels = "the labels" if len(names) > 1 else "the label"
            reason = (
                f"none of the {len(series)} series has {of_labels} `{label}`"
                if series
                else "the query returns no series"
            )
            yield make_diagnostic(
                "PS903",
                f"`{metric.name}` has no samples on `{name}` now: {reason}",
                metric.span,
                label=f"queries `{query}`",
            )
            return
        value, count = values.most_common(1)[0]
        if count > 1:
            yield make_diagnostic(
                "PS905",
                f"`{metric.name}` has {count} series with `{label}` = `{value}`, so {'that node has' if is_node_metric(metric) else 'those two pods have'} no sample",
                metric.span,
                label=f"queries `{query}`",
                help=f"aggregate them into one series: `sum by ({', '.join(names)}) (...)`, or `max by`",
            )

    def _query_labels(
        self, query: str, name: str, source: PrometheusSettings
    ) -> list[dict[str, object]] | PollError:
        """The labels of the series, cached."""
        if (name, query) not in self._labels_cache:
            self._labels_cache[name, query] = asyncio.run(_fetch_labels(query, source))
        return self._labels_cache[name, query]


def join_labels(join: str | tuple[str, str] | PairJoinSpec) -> tuple[str, ...]:
    """The labels of a series that identify its node or pods."""
    match join:
        case PairJoinSpec(sender=sender, receiver=receiver):
            return (*sender, *receiver)
        case (label, _):
            return (label,)
        case str():
            return (join,)


async def _fetch_labels(query: str, source: PrometheusSettings) -> list[dict[str, object]] | PollError:
    try:
        async with HttpConnectionPool(f"policysched/{__version__}") as pool:
            response = parse_response(await PrometheusHttpTransport(source, pool).query(query))
        return [dict(series.labels) for series in map(parse_series, response.series) if series is not None]
    except PollError as error:
        return error
