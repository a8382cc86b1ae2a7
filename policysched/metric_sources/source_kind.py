"""What a kind of metric source provides: its settings, what the settings schema cannot check, and the source itself.

Every kind is one class that satisfies `SourceSettings`, listed in `metric_sources.registry`.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from policysched.lang.ir.declarations import Metric
from policysched.metric_sources.poll_status import SourcePollStatus
from policysched.metric_sources.source import SampleSource

if TYPE_CHECKING:
    # For annotations only: offline commands read sample files and must not import aiohttp.
    from policysched.metric_sources.prometheus_transport import HttpConnectionPool

SettingProblem = tuple[Sequence[str], str]
"""The path of a setting, and what is wrong with it."""

ApiGet = Callable[[str, float], Awaitable[tuple[int, bytes]]]
"""GET a path from the Kubernetes API server within the given number of seconds: status and body. Raises PollError."""


@dataclass(frozen=True, slots=True)
class SourceContext:
    """What the program hands to a source: its name in the settings, where it records its polls, clock, random numbers,
    and the connections that all sources share."""

    name: str
    status: SourcePollStatus
    now_ns: Callable[[], int]
    random: Random
    pool: "HttpConnectionPool"
    api_get: ApiGet


class SourceSettings(Protocol):
    """The settings of one source."""

    kind: ClassVar[str]
    """The value of `kind` in the settings."""

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """From YAML that fits the schema and has no `problems`."""
        ...

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> Iterator[SettingProblem]:
        """What the schema cannot express; paths start below the source."""
        ...

    def unsupported_reason(self, metric: Metric) -> str | None:
        """Why this source cannot serve the metric, known without contacting it; None where it can."""
        ...

    def create(self, context: SourceContext) -> SampleSource:
        """The source. Sends nothing. Raises BadSamplesFile."""
        ...
