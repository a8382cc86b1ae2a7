"""A bind without an outcome, and the binds of one namespace with what their answers have shown of it: after FAILING_AFTER
failures in a row it is failing until one answer, and after a request that takes long it is slow until a prompt one."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from policysched.kube.client.api import ApiStatusError
from policysched.kube.client.backoff import Backoff
from policysched.scheduler.commands import Bind

SLOW_AFTER_S = 0.5
"""A request that takes longer makes its namespace slow."""

FAILING_AFTER = 3
"""After this many requests in a row without an answer, a namespace is failing."""

REST_STEP_S, REST_MAX_S = 0.1, 1.0
"""A failing namespace sends its next request after a rest, which grows by a step with each failure in a row."""


class Standing(IntEnum):
    """What is known of a namespace that is not set aside. `TRUSTED`: a bind was answered promptly in the last minutes.
    `DOUBTFUL`: so it was, but one was slow or failed in the last minute. `UNKNOWN`: nothing tells it from one that hangs."""

    TRUSTED = 0
    DOUBTFUL = 1
    UNKNOWN = 2


@dataclass(slots=True, eq=False)
class PendingBind:
    """A bind without an outcome, and what its requests have shown."""

    bind: Bind
    backoff: Backoff | None = None
    began_s: float | None = None
    failures: int = 0
    unknown_until_s: float | None = None
    """Until then an earlier request may still be carried out."""
    rejection: ApiStatusError | None = None
    """Why the pod is read instead of bound."""
    queue: "NamespaceBinds | None" = None
    standing: Standing = Standing.UNKNOWN
    """Of its namespace, when it was sent."""
    throttled: bool = False
    sent_s: float = 0.0
    """When its last request was."""
    charge_s: float = 0.0
    """What its namespace was charged for it."""
    worker: "asyncio.Task[None] | None" = None
    """Whose request it has."""
    is_leaving: bool = False
    """Its request is given up."""
    is_delayed: bool = False
    is_reported: bool = False
    is_waiting: bool = False
    """For its next request to be due."""
    is_gone: bool = False
    """Its pod is: no further request is sent."""
    is_current: Callable[[], bool] | None = None
    """Asked before the first request leaves: whether the decision still holds. None: it always does."""


_Line = OrderedDict[PendingBind, None]


@dataclass(slots=True, eq=False)
class NamespaceBinds:
    """`first`: binds that no request was sent for. `due`: those to send again. `waiting`: those that are not due yet."""

    name: str
    first: _Line = field(default_factory=OrderedDict)
    due: _Line = field(default_factory=OrderedDict)
    waiting: int = 0
    active: int = 0
    throttled_active: int = 0
    failures: int = 0
    slow: bool = False
    standing: Standing | None = None
    """Among the turns of which it has its own. None: it has none."""
    turn: "tuple[float, int, NamespaceBinds] | None" = None
    """The charged time after it, its number, and itself."""
    charged_s: float = 0.0
    """How long its binds held places, compared with those of others (`kube.write.bind_turns`)."""
    answer_s: float = 0.0
    """A moving mean of how long its binds hold a place."""
    in_throttled_ring: bool = False
    is_retry_turn: bool = False
    is_newest_turn: bool = False
    rests_until_s: float | None = None
    failing_since_s: float = 0.0
    reason: str | None = None
    """Why it fails, once that is reported."""

    @property
    def failing(self) -> bool:
        return self.failures >= FAILING_AFTER

    @property
    def set_aside(self) -> bool:
        """Whether its binds are throttled, and nobody waits for them."""
        return self.failing or self.slow

    @property
    def has_binds(self) -> bool:
        return bool(self.active or self.first or self.waiting or self.due)

    @property
    def size(self) -> int:
        return self.active + self.waiting + len(self.first) + len(self.due)

    @property
    def rest_s(self) -> float:
        return min(REST_MAX_S, REST_STEP_S * (self.failures - FAILING_AFTER + 1))

    def charge(self, pending: PendingBind) -> None:
        """In advance, for a request that is sent."""
        pending.charge_s = self.answer_s
        self.charged_s += self.answer_s

    def settle(self, pending: PendingBind, now_s: float) -> None:
        """Its request leaves its place."""
        took_s = now_s - pending.sent_s
        self.charged_s += took_s - pending.charge_s
        self.answer_s = (took_s + (self.answer_s or took_s)) / 2

    def take(self) -> PendingBind | None:
        """A retry and a first attempt in turn. While the namespace is set aside, first attempts are the oldest and the newest
        in turn: hundreds that hang can be before one that does not."""
        self.is_retry_turn = not self.is_retry_turn
        if self.due and (self.is_retry_turn or not self.first):
            return self.due.popitem(last=False)[0]
        if not self.first:
            return None
        self.is_newest_turn = self.set_aside and not self.is_newest_turn
        return self.first.popitem(last=self.is_newest_turn)[0]
