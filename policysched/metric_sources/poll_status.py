"""The poll status of one source: outcomes, the last good poll and the current failure of each metric.

Written by the source, read by `/policy` and `/metrics`. A failure is logged when it begins, changes its kind and ends, not
at each poll.
"""

import logging
from collections.abc import Hashable
from dataclasses import dataclass

log = logging.getLogger(__name__)

MetricKey = tuple[str, str]
"""Policy, metric."""


class PollError(Exception):
    """A poll without a usable response. `kind` is one of `POLL_ERROR_KINDS`, for counters. The message has no secrets."""

    def __init__(self, kind: str, message: str) -> None:
        assert kind in POLL_ERROR_KINDS, kind
        super().__init__(message)
        self.kind = kind


POLL_ERROR_KINDS = frozenset(
    {
        "unreachable",  # no connection, or it was interrupted
        "timeout",
        "tls",  # the server's certificate, or ours
        "credentials",  # unreadable, or rejected by the server
        "redirect",  # never followed: credentials would be sent to an unknown server
        "status",  # any other HTTP status but 200
        "query",  # the server rejects the query, or fails to evaluate it
        "too_large",
        "malformed",  # not JSON, or not of the API's form
        "wrong_type",  # a scalar or a range instead of one value per series
    }
)


@dataclass(frozen=True, slots=True)
class PollResult:
    """The last good poll of a metric: nodes with a usable sample, series that match no node (`unmatched`), nodes with two
    series (`duplicated`), nodes whose value is not of the metric's type (`invalid`). For a metric between pods: pods,
    series that do not name two pods, pairs."""

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
    """The status of the source with this name."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.polls_by_outcome: dict[str, int] = {"ok": 0}
        self.last_good: dict[MetricKey, PollResult] = {}
        self.failures: dict[MetricKey, PollFailure] = {}
        self._logged_failures: dict[Hashable, str] = {}
        self._logged_warnings: dict[Hashable, tuple[str, ...]] = {}

    def count_poll(self, kind: str = "ok") -> None:
        """Count a poll of a source that logs its failures itself."""
        self.polls_by_outcome[kind] = self.polls_by_outcome.get(kind, 0) + 1

    def record_poll_success(self, query: Hashable, text: str, warnings: tuple[str, ...] = ()) -> None:
        self.polls_by_outcome["ok"] += 1
        if self._logged_failures.pop(query, None) is not None:
            log.info("polling succeeds again", extra={"source": self.source, "query": text})
        if warnings != self._logged_warnings.get(query, ()):
            self._logged_warnings[query] = warnings
            if warnings:
                log.warning(
                    "the metric source returned warnings; its response may be incomplete",
                    extra={"source": self.source, "query": text, "warnings": "; ".join(warnings)},
                )

    def record_poll_failure(self, query: Hashable, text: str, error: PollError) -> None:
        self.polls_by_outcome[error.kind] = self.polls_by_outcome.get(error.kind, 0) + 1
        if self._logged_failures.get(query) != error.kind:
            self._logged_failures[query] = error.kind
            log.warning(
                "polling failed; using the last samples until they are stale",
                extra={"source": self.source, "query": text, "kind": error.kind, "error": str(error)},
            )

    def record_delivery(self, key: MetricKey, poll: PollResult) -> None:
        self.last_good[key] = poll
        self.failures.pop(key, None)

    def record_delivery_failure(self, key: MetricKey, error: PollError, now_ns: int) -> None:
        before = self.failures.get(key)
        since_ns = now_ns if before is None else before.since_ns
        self.failures[key] = PollFailure(error.kind, str(error), since_ns)

    def forget_metric(self, key: MetricKey) -> None:
        """No policy declares the metric any more."""
        self.last_good.pop(key, None)
        self.failures.pop(key, None)

    def forget_query(self, query: Hashable) -> None:
        self._logged_failures.pop(query, None)
        self._logged_warnings.pop(query, None)
