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
from policysched.daemon.consultant import terms_of
from policysched.daemon.sampling import why_unserved_by
from policysched.lang.diagnostics.catalogue import diagnostic
from policysched.lang.ir.program import Between, Metric, Program, of_nodes
from policysched.lint.linting import CannotAsk
from policysched.metric_sources.poll_status import Unusable
from policysched.metric_sources.prometheus_answer import read_answer, reading
from policysched.metric_sources.prometheus_server import Pool, PrometheusServer, PrometheusSettings
from policysched.metric_sources.sources import name_for
from policysched.scheduler.extenders.terms import not_to_be_asked
from policysched.text import Diagnostic

_THE_POLICYS = frozenset({"query", "wrong_type"})
"""Kinds of trouble that the query is to blame for."""


class SettingsAtHand:
    """`live`: ask the servers, too."""

    def __init__(self, settings: Settings, *, live: bool) -> None:
        self._samples = settings.samples
        self._why_unserved = why_unserved_by(settings)
        self._extenders = terms_of(settings.extenders)
        self._live = live
        self._answers: dict[tuple[str, str], list[dict[str, object]] | Unusable] = {}

    def findings(self, program: Program) -> Iterator[Diagnostic]:
        """Raises CannotAsk."""
        for metric in program.metrics.values():
            yield from self._of_metric(metric)
        yield from not_to_be_asked(program, self._extenders)

    def _of_metric(self, metric: Metric) -> Iterator[Diagnostic]:
        why = self._why_unserved(metric)
        if why is not None:
            words = f"`{metric.name}` would be missing for every node: {why}"
            yield diagnostic("PS902", words, metric.span, label="no source brings its samples")
        elif self._live:
            samples = self._samples
            name = name_for(metric, samples.sources, samples.default)
            source = samples.sources.get(name) if name is not None else None
            if name is not None and isinstance(source, PrometheusSettings):
                yield from self._answered(metric, metric.query, name, source)
                if metric.sampled_at is not None:
                    yield from self._answered(metric, metric.sampled_at, name, source)

    def _answered(
        self, metric: Metric, query: str, name: str, source: PrometheusSettings
    ) -> Iterator[Diagnostic]:
        found = self._ask(query, name, source)
        if isinstance(found, Unusable):
            if found.kind not in _THE_POLICYS:
                raise CannotAsk(f"source `{name}`: {found}")
            yield diagnostic(
                "PS904",
                f"`{metric.name}` cannot be asked of `{name}`: {found}",
                metric.span,
                label=f"asks `{query}`",
            )
            return
        names = joined_by(metric.join)
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
            yield diagnostic(
                "PS903",
                f"`{metric.name}` has nothing on `{name}` now: {what}",
                metric.span,
                label=f"asks `{query}`",
            )
            return
        value, count = values.most_common(1)[0]
        if count > 1:
            yield diagnostic(
                "PS905",
                f"`{metric.name}` has {count} series with `{label}` = `{value}`, so {'that node has' if of_nodes(metric) else 'those two pods have'} no sample",
                metric.span,
                label=f"asks `{query}`",
                help=f"make one of them: `sum by ({', '.join(names)}) (...)`, or `max by`",
            )

    def _ask(self, query: str, name: str, source: PrometheusSettings) -> list[dict[str, object]] | Unusable:
        """The labels of the series, asked once."""
        if (name, query) not in self._answers:
            self._answers[name, query] = asyncio.run(_labels(query, source))
        return self._answers[name, query]


def joined_by(join: str | tuple[str, str] | Between) -> tuple[str, ...]:
    """The labels of a series that say what it is about."""
    match join:
        case Between(sender=sender, receiver=receiver):
            return (*sender, *receiver)
        case (label, _):
            return (label,)
        case str():
            return (join,)


async def _labels(query: str, source: PrometheusSettings) -> list[dict[str, object]] | Unusable:
    try:
        async with Pool(f"policysched/{__version__}") as pool:
            answer = read_answer(await PrometheusServer(source, pool).query(query))
    except Unusable as error:
        return error
    return [dict(one.labels) for one in map(reading, answer.series) if one is not None]
