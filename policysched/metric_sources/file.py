"""Samples from a file: `{metric: {node: value}}` in YAML or JSON, reloaded when it changes; between pods
`{metric: {"ml/train-0 -> ml/train-1": value}}`.

For trying out a policy, for tests, and for values from other systems. Values count as measured at each check of the
file, so its samples do not become stale while it is readable.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from policysched.cluster.metric_samples import MetricSamples
from policysched.data_files import expand_home
from policysched.files import UnreadableFile, read_text
from policysched.lang.ir.declarations import Metric, is_node_metric
from policysched.metric_sources.pod_pairs import RawPairs, convert_pair_samples, parse_pair
from policysched.metric_sources.poll_status import MetricKey, PollError, PollResult, SourcePollStatus
from policysched.metric_sources.source import (
    RawSamples,
    SampleConsumer,
    SampleSource,
    convert_samples,
    describe_dropped_samples,
    describe_invalid_values,
    value_converter,
)
from policysched.metric_sources.source_kind import SettingProblem, SourceContext
from policysched.model.identifiers import NodeName
from policysched.scheduler.events import SamplesArrived
from policysched.schemas import findings
from policysched.yaml_values import parse_yaml

log = logging.getLogger(__name__)

SamplesTable = Mapping[str, Mapping[str, float | str]]

CHECK_INTERVAL_S = 1.0
PROBLEMS_LISTED_MAX = 20


@dataclass(frozen=True, slots=True)
class FileSettings:
    kind: ClassVar[str] = "file"

    path: Path

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        return cls(expand_home(values["path"]))

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> Iterator[SettingProblem]:  # noqa: ARG003
        yield from ()

    def unsupported_reason(self, metric: Metric) -> str | None:  # noqa: ARG002
        """None: which metrics it has is known once it is read."""
        return None

    def create(self, context: SourceContext) -> SampleSource:
        return FileSampleSource(self.path, context.status, now_ns=context.now_ns)


class BadSamplesFile(Exception):
    """An unreadable or invalid samples file. `problems` has one line per error: the first `PROBLEMS_LISTED_MAX`, and the
    number of further errors."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def read_samples_file(path: Path) -> SamplesTable:
    """The metrics in the file. Raises BadSamplesFile."""
    try:
        text = read_text(path)
        value: Any = parse_yaml(text)
    except UnreadableFile as error:
        raise BadSamplesFile(f"{path}: {error}") from error
    value = {} if value is None else value
    if errors := findings("samples", value, text):
        problems = [f"{path}: {error}" for error in errors[:PROBLEMS_LISTED_MAX]]
        if len(errors) > PROBLEMS_LISTED_MAX:
            problems.append(f"{path}: and {len(errors) - PROBLEMS_LISTED_MAX} more errors")
        raise BadSamplesFile(*problems)
    table: SamplesTable = value
    return {metric: {str(node): value for node, value in values.items()} for metric, values in table.items()}


@dataclass(frozen=True, slots=True)
class FileMetricSamples:
    """The samples of one metric in a file. `invalid` entries have no value of the metric's type; `invalid_message` names
    them. `unknown_nodes` do not exist in the cluster."""

    samples: MetricSamples
    invalid: int
    invalid_message: str | None
    unknown_nodes: tuple[str, ...]

    def poll_result(self) -> PollResult:
        """For `SourcePollStatus`."""
        usable = len(self.samples.values) or len(self.samples.pairs)
        unmatched = sum(name in self.samples.values for name in self.unknown_nodes)
        return PollResult(
            self.samples.polled_ns, usable - unmatched, unmatched=unmatched, invalid=self.invalid
        )


def convert_file_metric(
    metric: Metric, values: Mapping[str, float | str], nodes: Collection[NodeName], now_ns: int
) -> FileMetricSamples:
    """Converts the values of one metric, keyed by node, or by a pair of pods: `ml/train-0 -> ml/train-1`."""
    if not is_node_metric(metric):
        return _convert_file_pairs(metric, values, now_ns)
    raw = RawSamples(values, now_ns)
    samples = convert_samples(metric, raw)
    unknown_nodes = tuple(name for name in values if NodeName(name) not in nodes)
    return FileMetricSamples(
        samples,
        len(values) - len(samples.values),
        describe_dropped_samples(metric, raw, samples),
        unknown_nodes,
    )


def _convert_file_pairs(metric: Metric, values: Mapping[str, float | str], now_ns: int) -> FileMetricSamples:
    pairs = {key: pair for key in values if (pair := parse_pair(key)) is not None}
    samples = convert_pair_samples(metric, RawPairs({pairs[key]: values[key] for key in pairs}, now_ns))
    convert = value_converter(metric)
    invalid_values = {key: values[key] for key in pairs if convert(values[key]) is None}
    invalid_keys = [f"`{key}`" for key in values if key not in pairs]
    message = describe_invalid_values(metric, invalid_values)
    if invalid_keys:
        key_message = f"metric {metric.name}: not a pair of pods (`namespace/name -> namespace/name`): {', '.join(invalid_keys[:3])}"
        message = key_message if message is None else f"{message}; {key_message}"
    return FileMetricSamples(samples, len(invalid_values) + len(invalid_keys), message, ())


@dataclass(slots=True)
class _FileContents:
    """The last contents of the file, and its stamp on disk then."""

    stamp: tuple[int, int] | None
    table: SamplesTable


class FileSampleSource:
    """A `SampleSource`. Raises BadSamplesFile if the file is unusable at the start. If it becomes unusable later, its
    samples are no longer delivered and become stale."""

    def __init__(self, path: Path, status: SourcePollStatus, *, now_ns: Callable[[], int]) -> None:
        self._path = path
        self._status = status
        self._now_ns = now_ns
        self._last = _FileContents(_file_stamp(path), read_samples_file(path))
        self._broken: BadSamplesFile | None = None

    def unsupported_reason(self, metric: Metric) -> str | None:
        return None if self.has_metric(metric) else f"{self._path} has no such metric"

    def has_metric(self, metric: Metric) -> bool:
        return metric.name in self._last.table

    async def run(self, consumer: SampleConsumer) -> None:
        """Check the file each second; deliver metrics that changed or are due by their `every`."""
        delivered: dict[MetricKey, tuple[Metric, int]] = {}
        lacking: set[MetricKey] = set()
        while True:
            changed = self._reload_if_changed()
            self._status.count_poll("malformed" if self._broken is not None else "ok")
            now_ns = self._now_ns()
            wanted = consumer.declared_metrics()
            for key in [key for key in {*delivered, *lacking} if key[1] not in wanted.get(key[0], {})]:
                delivered.pop(key, None)
                lacking.discard(key)
                self._status.forget_metric(key)
            for policy, metrics in wanted.items():
                for name, metric in metrics.items():
                    if name not in self._last.table:
                        continue
                    if self._broken is not None:
                        lacking.add((policy, name))
                        reason = PollError("malformed", str(self._broken))
                        self._status.record_delivery_failure((policy, name), reason, now_ns)
                        continue
                    before, at_ns = delivered.get((policy, name), (None, -(2**62)))
                    # Half an interval of slack: checks run once a second, and `every = 1s` means each of them.
                    due = now_ns - at_ns >= metric.poll_interval_ns - int(CHECK_INTERVAL_S * 5e8)
                    if changed or due or before != metric:
                        delivered[policy, name] = metric, now_ns
                        converted = convert_file_metric(
                            metric, self._last.table[name], consumer.nodes(), now_ns
                        )
                        if (changed or before != metric) and converted.invalid_message:
                            log.warning(
                                "the samples file has invalid values",
                                extra={"path": str(self._path), "error": converted.invalid_message},
                            )
                        self._status.record_delivery((policy, name), converted.poll_result())
                        consumer.deliver(SamplesArrived(policy, name, converted.samples))
            await asyncio.sleep(CHECK_INTERVAL_S)

    def _reload_if_changed(self) -> bool:
        """Reload the file if it changed on disk. True if there are new contents."""
        stamp = _file_stamp(self._path)
        if stamp == self._last.stamp and not (stamp is None and self._broken is None):
            return False
        try:
            self._last = _FileContents(stamp, read_samples_file(self._path))
        except BadSamplesFile as error:
            if self._broken is None or stamp != self._last.stamp:
                log.warning(
                    "cannot use the samples file; using its last samples until they are stale",
                    extra={"error": str(error)},
                )
            self._broken = error
            self._last.stamp = stamp
            return False
        if self._broken is not None:
            log.info("the samples file is usable again", extra={"path": str(self._path)})
        self._broken = None
        return True


def _file_stamp(path: Path) -> tuple[int, int] | None:
    """Changes with the contents, as far as the file system shows; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
