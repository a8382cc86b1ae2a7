"""The series of a metric between pods, or the largest ones of each namespace where all are more than a response may have.

Pods that all talk to each other make a series for each two of them, 300 of them more than `response_bytes_max` allows. Then
the smallest series of the namespaces with the most are left out, and no other namespace loses any. How many each may have
follows from the size of the responses:

    all ──too large──► 1,000 ──too large──► 250 ──► ... ──► 3 ──too large──► the poll fails
     ▲                   │ ▲
     └── more than fit ──┘ └── four times as many, as long as they fit
"""

from collections import Counter
from typing import Protocol

from policysched.metric_sources.poll_status import PollError

NAMESPACE_LABEL = "policysched_namespace"
_FIRST_COUNT = 1_000
_STEP = 4
_SERIES_BYTES_MIN = 64
_QUERIES_MAX = 16
_NAMED_MAX = 3


class PrometheusTransport(Protocol):
    """Sends queries to one server."""

    async def query(self, query: str) -> bytes:
        """The body of a response with status 200. Raises PollError."""
        ...


class LargestPairs:
    """Remembers of the last few queries how many series of each namespace fit."""

    def __init__(self, transport: PrometheusTransport, response_bytes_max: int) -> None:
        self._transport, self._bytes_max = transport, response_bytes_max
        self._counts: dict[tuple[str, str], int] = {}

    async def fetch(self, query: str, sender_label: str) -> tuple[bytes, int | None]:
        """The response, and how many series of each namespace it has at most (None: it has all). Raises PollError."""
        key = query, sender_label
        count = self._counts.pop(key, None)
        while True:
            text = query if count is None else largest_series(query, sender_label, count)
            try:
                body = await self._transport.query(text)
                break
            except PollError as error:
                count = _FIRST_COUNT if count is None else count // _STEP
                if error.kind != "too_large" or not count:
                    raise
        if count is not None:
            following = count * _STEP if len(body) * _STEP < self._bytes_max else count
            if following * _SERIES_BYTES_MIN < self._bytes_max:
                self._counts[key] = following
                if len(self._counts) > _QUERIES_MAX:
                    del self._counts[next(iter(self._counts))]
        return body, count


def largest_series(query: str, sender_label: str, count: int) -> str:
    """The query for so many series of each namespace that sends; `sender_label` has the namespace, or `namespace/pod`."""
    # On lines of its own, because it may end with a comment.
    named = f'label_replace(\n{query}\n, "{NAMESPACE_LABEL}", "$1", "{sender_label}", "([^/]*).*")'
    return f"topk by ({NAMESPACE_LABEL}) ({count}, {named})"


def describe_left_out(series: Counter[str], count: int) -> tuple[str, ...]:
    """A warning if namespaces have as many series as they may, which are then not all."""
    full = sorted(
        namespace or "outside the cluster" for namespace, number in series.items() if number >= count
    )
    if not full:
        return ()
    more = f" and {len(full) - _NAMED_MAX} more" if len(full) > _NAMED_MAX else ""
    return (
        f"all series are too many bytes: only the {count:,} largest ones of {', '.join(full[:_NAMED_MAX])}{more} count",
    )
