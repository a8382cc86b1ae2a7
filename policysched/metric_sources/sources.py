"""All sources of one process by their names, as the settings give them: each metric goes to the one that it names.

A metric that names none goes to the only one there is, or to the default that the settings give. A file of samples laid
over them all (`--metrics`) comes first for the metrics that it has: for trying a policy, and for the worst night.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from policysched.lang.ir.program import Metric
from policysched.metric_sources.file import FileSamples
from policysched.metric_sources.poll_status import Book, Key
from policysched.metric_sources.source import Customer, SampleSource, Wanted

WhyNot = Callable[[Metric], str | None]
"""Why samples of a metric will not come; None where they will."""


@dataclass(frozen=True, slots=True)
class Source:
    """One entry of the settings. `kind` is the settings' word."""

    kind: str
    source: SampleSource
    book: Book


@dataclass(frozen=True, slots=True)
class Sources:
    """`overlaid` is laid over all. `pool` is open while they run."""

    by_name: Mapping[str, Source] = field(default_factory=dict)
    default: str | None = None
    overlaid: tuple[FileSamples, Book] | None = None
    pool: Callable[[], AbstractAsyncContextManager[object]] = nullcontext

    def name_for(self, metric: Metric) -> str | None:
        """The source that a metric is asked of, known or not; None where nothing decides."""
        return name_for(metric, self.by_name, self.default)

    def why_not(self, metric: Metric) -> str | None:
        """Why nobody will bring samples of this metric; None where somebody does."""
        if self.overlaid is not None and self.overlaid[0].has(metric):
            return None
        askers = {name: one.source.why_not for name, one in self.by_name.items()}
        return why_unserved(metric, askers, self.default)

    async def run(self, customer: Customer) -> None:
        """Until cancelled."""
        async with self.pool(), asyncio.TaskGroup() as group:
            if self.overlaid is not None:
                over = self.overlaid[0]
                group.create_task(over.run(_for_some(customer, over.has)))
            for name, one in self.by_name.items():
                group.create_task(one.source.run(_for_some(customer, self._is_of(name))))
            await asyncio.get_running_loop().create_future()

    def _is_of(self, name: str) -> Callable[[Metric], bool]:
        def goes_there(metric: Metric) -> bool:
            overlaid = self.overlaid is not None and self.overlaid[0].has(metric)
            return not overlaid and self.name_for(metric) == name

        return goes_there

    def books(self) -> Iterator[Book]:
        if self.overlaid is not None:
            yield self.overlaid[1]
        yield from (one.book for one in self.by_name.values())

    def book_of(self, key: Key) -> Book | None:
        """The book that knows of this metric of this policy."""
        return next((book for book in self.books() if key in book.good or key in book.trouble), None)


def name_for(metric: Metric, names: Collection[str], default: str | None) -> str | None:
    if metric.source is not None:
        return metric.source
    return next(iter(names)) if len(names) == 1 else default


def why_unserved(metric: Metric, sources: Mapping[str, WhyNot], default: str | None) -> str | None:
    """Of sources by name, each as what it says of a metric."""
    name = name_for(metric, sources, default)
    if name is None:
        if not sources:
            return "the settings give no source of samples"
        return f"it names no source, and the settings have several: {', '.join(sorted(sources))}"
    why_not = sources.get(name)
    if why_not is None:
        return f"the settings have no source `{name}`"
    why = why_not(metric)
    return None if why is None else f"source `{name}`: {why}"


def unserved(wanted: Wanted, why_not: WhyNot) -> dict[Key, str]:
    """Why nobody will bring samples, for each metric of which that is so."""
    return {
        (policy, name): why
        for policy, metrics in sorted(wanted.items())
        for name, metric in sorted(metrics.items())
        if (why := why_not(metric)) is not None
    }


def _for_some(customer: Customer, which: Callable[[Metric], bool]) -> Customer:
    def wanted() -> Wanted:
        return {
            policy: {name: metric for name, metric in metrics.items() if which(metric)}
            for policy, metrics in customer.wanted().items()
        }

    return Customer(wanted, customer.nodes, customer.deliver)
