"""What lint can say with the operator's settings at hand: which metrics no source serves and which extenders are not named
there, and, asked to, what the servers answer to the metrics' queries right now.

Nodes are not known here, so of the join only the label is looked at: whether the series have it, and whether two have the
same. Whether a server can be reached at all is not the policy's matter and ends the run.
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
from policysched.text import Diagnostic

_POLICY_FAULTS = frozenset({"query", "wrong_type"})
"""Kinds of trouble that the query is to blame for."""


class SettingsChecks:
    """`live`: ask the servers, too."""

    def __init__(self, settings: Settings, *, live: bool) -> None:
        self._samples = settings.samples
        self._why_unserved = unserved_reason_lookup(settings)
        self._extenders = extender_capabilities(settings.extenders)
        self._live = live
        self._labels_cache: dict[tuple[str, str], list[dict[str, object]] | PollError] = {}

    def findings(self, program: Program) -> Iterator[Diagnostic]:
        """Raises CannotAsk."""
        for metric in program.metrics.values():
            yield from self._metric_findings(metric)
        yield from unusable_extenders(program, self._extenders)

    def _metric_findings(self, metric: Metric) -> Iterator[Diagnostic]:
        why = self._why_unserved(metric)
        if why is not None:
            words = f"`{metric.name}` would be missing for every node: {why}"
            yield make_diagnostic("PS902", words, metric.span, label="no source brings its samples")
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
        found = self._query_labels(query, name, source)
        if isinstance(found, PollError):
            if found.kind not in _POLICY_FAULTS:
                raise LiveQueryFailed(f"source `{name}`: {found}")
            yield make_diagnostic(
                "PS904",
                f"`{metric.name}` cannot be asked of `{name}`: {found}",
                metric.span,
                label=f"asks `{query}`",
            )
            return
        names = join_labels(metric.join)
        label = "`, `".join(names)
        values = Counter(
            ", ".join(str(labels[name]) for name in names) for labels in found if labels.keys() >= set(names)
        )
        if not values:
            of_labels = "the labels" if len(names) > 1 else "the label"
            what = (
                f"none of its {len(found)} series has {of_labels} `{label}`"
                if found
                else "there is no series"
            )
            yield make_diagnostic(
                "PS903",
                f"`{metric.name}` has nothing on `{name}` now: {what}",
                metric.span,
                label=f"asks `{query}`",
            )
            return
        value, count = values.most_common(1)[0]
        if count > 1:
            yield make_diagnostic(
                "PS905",
                f"`{metric.name}` has {count} series with `{label}` = `{value}`, so {'that node has' if is_node_metric(metric) else 'those two pods have'} no sample",
                metric.span,
                label=f"asks `{query}`",
                help=f"make one of them: `sum by ({', '.join(names)}) (...)`, or `max by`",
            )

    def _query_labels(
        self, query: str, name: str, source: PrometheusSettings
    ) -> list[dict[str, object]] | PollError:
        """The labels of the series, asked once."""
        if (name, query) not in self._labels_cache:
            self._labels_cache[name, query] = asyncio.run(_fetch_labels(query, source))
        return self._labels_cache[name, query]


def join_labels(join: str | tuple[str, str] | PairJoinSpec) -> tuple[str, ...]:
    """The labels of a series that say what it is about."""
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
            answer = parse_response(await PrometheusHttpTransport(source, pool).query(query))
    except PollError as error:
        return error
    return [dict(one.labels) for one in map(parse_series, answer.series) if one is not None]
