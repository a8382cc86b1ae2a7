"""Samples from a file: `{metric: {node: value}}` in YAML or JSON, read again when it changes; between pods
`{metric: {"ml/train-0 -> ml/train-1": value}}`.

For trying a policy, for tests, and for whoever has numbers from elsewhere. What the file says counts as measured each
time it is looked at, so samples from it do not go stale while it is there and can be read.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policysched.cluster.samples import MetricSamples
from policysched.files import Unreadable, read_text, yaml_of
from policysched.lang.ir.program import Metric, of_nodes
from policysched.metric_sources.pairs import RawPairs, pair_samples, pair_written
from policysched.metric_sources.poll_status import Book, Key, Poll, Unusable
from policysched.metric_sources.source import (
    Customer,
    RawSamples,
    holder,
    no_values,
    samples_of,
    without_value,
)
from policysched.model.objects import NodeName
from policysched.scheduler.events import SamplesArrived
from policysched.schemas import findings

log = logging.getLogger(__name__)

Table = Mapping[str, Mapping[str, float | str]]

LOOK_EVERY_S = 1.0


MISTAKES_SAID_MAX = 20


class BadSamples(Exception):
    """A samples file that cannot be read or does not fit its schema. `problems` are lines that say what and where, one for each
    mistake: the first `MISTAKES_SAID_MAX`, and how many more there are."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def read_samples(path: Path) -> Table:
    """The file's metrics. Raises BadSamples."""
    try:
        text = read_text(path)
        value: Any = yaml_of(text)
    except Unreadable as error:
        raise BadSamples(f"{path}: {error}") from error
    value = {} if value is None else value
    if found := findings("samples", value, text):
        problems = [f"{path}: {one}" for one in found[:MISTAKES_SAID_MAX]]
        if len(found) > MISTAKES_SAID_MAX:
            problems.append(f"{path}: and {len(found) - MISTAKES_SAID_MAX} more mistakes")
        raise BadSamples(*problems)
    table: Table = value
    return {metric: {str(node): one for node, one in values.items()} for metric, values in table.items()}


@dataclass(frozen=True, slots=True)
class Written:
    """What a file says of one metric. `unusable` of its entries have no value of the metric's type, and `lost` says which; `strange` are
    names of nodes that are not there."""

    samples: MetricSamples
    unusable: int
    lost: str | None
    strange: tuple[str, ...]

    def poll(self) -> Poll:
        """As the source's book has it."""
        usable = len(self.samples.values) or len(self.samples.pairs)
        strange = sum(name in self.samples.values for name in self.strange)
        return Poll(self.samples.polled_ns, usable - strange, unmatched=strange, invalid=self.unusable)


def written(
    metric: Metric, values: Mapping[str, float | str], nodes: Collection[NodeName], now_ns: int
) -> Written:
    """The values of one metric, by node; of a metric between pods by two pods, `ml/train-0 -> ml/train-1`."""
    if not of_nodes(metric):
        return _written_pairs(metric, values, now_ns)
    raw = RawSamples(values, now_ns)
    samples = samples_of(metric, raw)
    strange = tuple(name for name in values if NodeName(name) not in nodes)
    return Written(samples, len(values) - len(samples.values), without_value(metric, raw, samples), strange)


def _written_pairs(metric: Metric, values: Mapping[str, float | str], now_ns: int) -> Written:
    pairs = {key: pair for key in values if (pair := pair_written(key)) is not None}
    samples = pair_samples(metric, RawPairs({pairs[key]: values[key] for key in pairs}, now_ns))
    held = holder(metric)
    worthless = {key: values[key] for key in pairs if held(values[key]) is None}
    nobody = [f"`{key}`" for key in values if key not in pairs]
    lost = no_values(metric, worthless)
    if nobody:
        words = (
            f"metric {metric.name}: no two pods (`namespace/name -> namespace/name`): {', '.join(nobody[:3])}"
        )
        lost = words if lost is None else f"{lost}; {words}"
    return Written(samples, len(worthless) + len(nobody), lost, ())


@dataclass(slots=True)
class _Look:
    """What the file said last, and how it looked on the disk then."""

    stamp: tuple[int, int] | None
    table: Table


class FileSamples:
    """A `SampleSource`. Raises BadSamples at once where the file cannot be used; later the last good contents stay in
    memory but are not delivered any more, so that what the policy says of stale samples applies."""

    def __init__(self, path: Path, book: Book, *, now_ns: Callable[[], int]) -> None:
        self._path = path
        self._book = book
        self._now_ns = now_ns
        self._last = _Look(_stamp(path), read_samples(path))
        self._broken: BadSamples | None = None

    def why_not(self, metric: Metric) -> str | None:
        return None if self.has(metric) else f"{self._path} has no metric of that name"

    def has(self, metric: Metric) -> bool:
        return metric.name in self._last.table

    async def run(self, customer: Customer) -> None:
        """Look each second; deliver what changed or is due (a metric's `every`)."""
        delivered: dict[Key, tuple[Metric, int]] = {}
        lacking: set[Key] = set()
        while True:
            changed = self._look()
            self._book.counted("garbage" if self._broken is not None else "ok")
            now_ns = self._now_ns()
            wanted = customer.wanted()
            for key in [one for one in {*delivered, *lacking} if one[1] not in wanted.get(one[0], {})]:
                delivered.pop(key, None)
                lacking.discard(key)
                self._book.forget(key)
            for policy, metrics in wanted.items():
                for name, metric in metrics.items():
                    if name not in self._last.table:
                        continue
                    if self._broken is not None:
                        lacking.add((policy, name))
                        why = Unusable("garbage", str(self._broken))
                        self._book.not_delivered((policy, name), why, now_ns)
                        continue
                    before, at_ns = delivered.get((policy, name), (None, -(2**62)))
                    # A second's grace: the looks come once a second, and `every = 1s` means each of them.
                    due = now_ns - at_ns >= metric.every_ns - int(LOOK_EVERY_S * 5e8)
                    if changed or due or before != metric:
                        delivered[policy, name] = metric, now_ns
                        found = written(metric, self._last.table[name], customer.nodes(), now_ns)
                        if (changed or before != metric) and found.lost:
                            log.warning(
                                "the samples file has what is no value",
                                extra={"path": str(self._path), "why": found.lost},
                            )
                        self._book.delivered((policy, name), found.poll())
                        customer.deliver(SamplesArrived(policy, name, found.samples))
            await asyncio.sleep(LOOK_EVERY_S)

    def _look(self) -> bool:
        """Read the file again if it changed on the disk. True: there is something new."""
        stamp = _stamp(self._path)
        if stamp == self._last.stamp and not (stamp is None and self._broken is None):
            return False
        try:
            self._last = _Look(stamp, read_samples(self._path))
        except BadSamples as error:
            if self._broken is None or stamp != self._last.stamp:
                log.warning(
                    "the samples file cannot be used; its samples will go stale", extra={"why": str(error)}
                )
            self._broken = error
            self._last.stamp = stamp
            return False
        if self._broken is not None:
            log.info("the samples file can be used again", extra={"path": str(self._path)})
        self._broken = None
        return True


def _stamp(path: Path) -> tuple[int, int] | None:
    """Changes whenever the contents do, as far as the file system tells; None where there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
