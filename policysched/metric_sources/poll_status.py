"""What is known of the polls of one source: how they ended, what the last good one of each metric had, what is wrong now.

Written by the source, read by `/policy` and `/metrics`. What goes wrong is logged when it begins, when it becomes another
thing, and when it is over: not at each poll.
"""

import logging
from collections.abc import Hashable
from dataclasses import dataclass

log = logging.getLogger(__name__)

MetricKey = tuple[str, str]
"""Policy, metric."""


class PollError(Exception):
    """A poll without a usable answer. `kind` is one word for counters: see `POLL_ERROR_KINDS`. The words have no secrets in them."""

    def __init__(self, kind: str, words: str) -> None:
        assert kind in POLL_ERROR_KINDS, kind
        super().__init__(words)
        self.kind = kind


POLL_ERROR_KINDS = frozenset(
    {
        "unreachable",  # no connection, or it broke
        "timeout",
        "tls",  # the server's certificate, or ours
        "credentials",  # ours cannot be read, or the server refuses them
        "redirect",  # never followed: credentials would go where nobody said
        "status",  # another HTTP status than 200
        "query",  # the server could not make sense of the query, or not carry it out
        "too_large",
        "garbage",  # no JSON, or not of the API's form
        "wrong_type",  # a scalar, a range: no series with one value each
    }
)


@dataclass(frozen=True, slots=True)
class PollResult:
    """What the last good poll of a metric gave: nodes with a usable sample; series that belong to no node, nodes left
    out for having two series, nodes whose value is none of the metric's type. Of a metric between pods: pods, series that do not
    name two pods, pairs."""

    polled_ns: int
    nodes: int
    unmatched: int = 0
    duplicated: int = 0
    invalid: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PollFailure:
    kind: str
    message: str
    since_ns: int


class SourcePollStatus:
    """Of the source of this name."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.polls_by_outcome: dict[str, int] = {"ok": 0}
        self.last_good: dict[MetricKey, PollResult] = {}
        self.failures: dict[MetricKey, PollFailure] = {}
        self._logged_failures: dict[Hashable, str] = {}
        self._logged_warnings: dict[Hashable, tuple[str, ...]] = {}

    def count_poll(self, kind: str = "ok") -> None:
        """A poll of a source that says itself what is wrong."""
        self.polls_by_outcome[kind] = self.polls_by_outcome.get(kind, 0) + 1

    def record_poll_success(self, question: Hashable, what: str, warnings: tuple[str, ...] = ()) -> None:
        self.polls_by_outcome["ok"] += 1
        if self._logged_failures.pop(question, None) is not None:
            log.info("polling succeeds again", extra={"source": self.source, "query": what})
        if warnings != self._logged_warnings.get(question, ()):
            self._logged_warnings[question] = warnings
            if warnings:
                log.warning(
                    "the metric source warns that its response may be incomplete",
                    extra={"source": self.source, "query": what, "why": "; ".join(warnings)},
                )

    def record_poll_failure(self, question: Hashable, what: str, error: PollError) -> None:
        self.polls_by_outcome[error.kind] = self.polls_by_outcome.get(error.kind, 0) + 1
        if self._logged_failures.get(question) != error.kind:
            self._logged_failures[question] = error.kind
            log.warning(
                "polling failed; samples become stale",
                extra={"source": self.source, "query": what, "kind": error.kind, "why": str(error)},
            )

    def record_delivery(self, key: MetricKey, poll: PollResult) -> None:
        self.last_good[key] = poll
        self.failures.pop(key, None)

    def record_delivery_failure(self, key: MetricKey, error: PollError, now_ns: int) -> None:
        before = self.failures.get(key)
        since_ns = now_ns if before is None else before.since_ns
        self.failures[key] = PollFailure(error.kind, str(error), since_ns)

    def forget_metric(self, key: MetricKey) -> None:
        """The metric is not wanted any more."""
        self.last_good.pop(key, None)
        self.failures.pop(key, None)

    def forget_query(self, question: Hashable) -> None:
        self._logged_failures.pop(question, None)
        self._logged_warnings.pop(question, None)
