"""What is known of the polls of one source: how they ended, what the last good one of each metric had, what is wrong now.

Written by the source, read by `/policy` and `/metrics`. What goes wrong is logged when it begins, when it becomes another
thing, and when it is over: not at each poll.
"""

import logging
from collections.abc import Hashable
from dataclasses import dataclass

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Policy, metric."""


class Unusable(Exception):
    """A poll without a usable answer. `kind` is one word for counters: see `KINDS`. The words have no secrets in them."""

    def __init__(self, kind: str, words: str) -> None:
        assert kind in KINDS, kind
        super().__init__(words)
        self.kind = kind


KINDS = frozenset(
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
class Poll:
    """What the last good poll of a metric gave: nodes with a usable sample; series that belong to no node, nodes left
    out for having two series, nodes whose value is none of the metric's type. Of a metric between pods: pods, series that do not
    name two pods, pairs."""

    at_ns: int
    nodes: int
    unmatched: int = 0
    doubled: int = 0
    invalid: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trouble:
    kind: str
    words: str
    since_ns: int


class Book:
    """Of the source of this name."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.polls: dict[str, int] = {"ok": 0}
        self.good: dict[Key, Poll] = {}
        self.trouble: dict[Key, Trouble] = {}
        self._said: dict[Hashable, str] = {}
        self._warned: dict[Hashable, tuple[str, ...]] = {}

    def counted(self, kind: str = "ok") -> None:
        """A poll of a source that says itself what is wrong."""
        self.polls[kind] = self.polls.get(kind, 0) + 1

    def asked_well(self, question: Hashable, what: str, warnings: tuple[str, ...] = ()) -> None:
        self.polls["ok"] += 1
        if self._said.pop(question, None) is not None:
            log.info("samples can be polled again", extra={"source": self.source, "query": what})
        if warnings != self._warned.get(question, ()):
            self._warned[question] = warnings
            if warnings:
                log.warning(
                    "a source of samples warns that its answer may lack something",
                    extra={"source": self.source, "query": what, "why": "; ".join(warnings)},
                )

    def asked_in_vain(self, question: Hashable, what: str, error: Unusable) -> None:
        self.polls[error.kind] = self.polls.get(error.kind, 0) + 1
        if self._said.get(question) != error.kind:
            self._said[question] = error.kind
            log.warning(
                "samples cannot be polled; they go stale meanwhile",
                extra={"source": self.source, "query": what, "kind": error.kind, "why": str(error)},
            )

    def delivered(self, key: Key, poll: Poll) -> None:
        self.good[key] = poll
        self.trouble.pop(key, None)

    def not_delivered(self, key: Key, error: Unusable, now_ns: int) -> None:
        before = self.trouble.get(key)
        since_ns = now_ns if before is None else before.since_ns
        self.trouble[key] = Trouble(error.kind, str(error), since_ns)

    def forget(self, key: Key) -> None:
        """The metric is not wanted any more."""
        self.good.pop(key, None)
        self.trouble.pop(key, None)

    def forget_question(self, question: Hashable) -> None:
        self._said.pop(question, None)
        self._warned.pop(question, None)
