"""Which command of a writer is carried out next: namespaces in turn, and slow ones apart from the others.

    put ──► waiting ──► one of `workers` places ──────────────────────► finished
               │                └── after SLOW_AFTER_S: the place is free, and the namespace slow
               └── of a slow namespace: without a place, each request with one of `workers` permits

A command can take for ever, such as one that a webhook of its namespace makes fail: it is repeated. A namespace is slow until
a command is prompt SLOW_FOR_S after its last slow one, or it has had none for so long (`kube.write.recent_namespaces`). One that
is not slow never waits for those that are. A command of several namespaces says whose each request is (`blame`), and that of the one
that took longest is at fault: commands of others with one that was slow lately are slow from their begin. Binds have their own rules
(`kube.write.bind_queue`).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from policysched.kube.write.recent_namespaces import SLOW_FOR_S, RecentNamespaces

SLOW_AFTER_S = 1.0
UNKNOWN_SHARE = 2
"""Commands of a namespace at a time until one was prompt."""

Command = TypeVar("Command")
Answer = TypeVar("Answer")


@dataclass(slots=True, eq=False)
class _Namespace(Generic[Command]):
    key: Hashable
    waiting: deque[Command] = field(default_factory=deque)
    active: int = 0
    active_max: int = UNKNOWN_SHARE
    is_slow: bool = False


@dataclass(slots=True, eq=False)
class _Turn:
    """Of one command."""

    permits: asyncio.Semaphore
    has_place: bool
    waited_s: float = 0.0
    """For permits."""
    blamed: Hashable = None
    """Whose request it is that is being sent, since `since_s` without `waited_s`; None: that of the whole key."""
    since_s: float = 0.0
    slowest: Hashable = None
    """Whose request took longest, and how long. Not whose requests: one with many victims would be at fault for one that is late."""
    longest_s: float = 0.0

    def end_request(self) -> None:
        now_s = asyncio.get_running_loop().time() - self.waited_s
        if now_s - self.since_s > self.longest_s:
            self.slowest, self.longest_s = self.blamed, now_s - self.since_s
        self.since_s = now_s


_turn: ContextVar[_Turn | None] = ContextVar("turn", default=None)


def blame(namespace: str) -> None:
    """The next requests of the command that is being carried out can be made slow by this one of its namespaces."""
    turn = _turn.get()
    if turn is not None:
        turn.end_request()
        turn.blamed = namespace


async def send_in_turn(send: Callable[[], Awaitable[Answer]]) -> Answer:
    """Sends one request of the command that is being carried out. Without a place, it waits for a permit."""
    turn = _turn.get()
    if turn is None or turn.has_place:
        return await send()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with turn.permits:
        turn.waited_s += loop.time() - began_s
        return await send()


class NamespaceTurns(Generic[Command]):
    """At most `workers` commands in places, three quarters of them of one namespace, those of a namespace in their order. A
    namespace may be any key that stands for whoever can make the command slow: a tuple stands for several. Commands send with
    `send_in_turn`."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._share = max(1, workers * 3 // 4)
        self._permits = asyncio.Semaphore(workers)
        self._namespaces: dict[Hashable, _Namespace[Command]] = {}
        self._slow_lately = RecentNamespaces[Hashable](SLOW_FOR_S)
        self._ring: deque[_Namespace[Command]] = deque()  # those with waiting commands
        self._placed = self._size = 0
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Commands that are not finished."""
        return self._size

    def waiting(self, key: Hashable) -> int:
        """Commands of a namespace that were not begun."""
        namespace = self._namespaces.get(key)
        return 0 if namespace is None else len(namespace.waiting)

    def put(self, key: Hashable, command: Command) -> None:
        namespace = self._namespaces.get(key)
        if namespace is None:
            namespace = self._namespaces[key] = _Namespace(key)
        if not namespace.waiting:
            self._ring.append(namespace)
        namespace.waiting.append(command)
        self._size += 1
        self._wake.set()

    async def run(
        self,
        carry_out: Callable[[Command], Awaitable[None]],
        wait_until_allowed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Until cancelled. What `carry_out` raises ends it. `wait_until_allowed` is awaited before each command."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                while (begun := self._begin()) is not None:
                    if wait_until_allowed is not None:
                        await wait_until_allowed()
                    group.create_task(self._carry_out(*begun, carry_out))
                await self._wake.wait()

    def _begin(self) -> tuple[_Namespace[Command], Command, bool] | None:
        """The next command, its namespace, and whether it has a place."""
        for _ in range(len(self._ring)):
            namespace = self._ring[0]
            self._ring.rotate(-1)
            is_slow = namespace.is_slow = namespace.is_slow or self._was_slow(namespace.key)
            if namespace.active < namespace.active_max and (is_slow or self._placed < self._workers):
                self._placed += not is_slow
                namespace.active += 1
                command = namespace.waiting.popleft()
                if not namespace.waiting:
                    self._ring.pop()
                return namespace, command, not is_slow
        return None

    async def _carry_out(
        self,
        namespace: _Namespace[Command],
        command: Command,
        has_place: bool,
        carry_out: Callable[[Command], Awaitable[None]],
    ) -> None:
        loop = asyncio.get_running_loop()
        began_s, turn = loop.time(), _Turn(self._permits, has_place)
        turn.since_s = began_s
        _turn.set(turn)
        timer = loop.call_later(SLOW_AFTER_S, self._leave_place, turn, namespace)
        try:
            await carry_out(command)
        finally:
            timer.cancel()
            self._placed -= turn.has_place
            namespace.active -= 1
            self._size -= 1
            now_s = loop.time()
            expired = self._slow_lately.expire(now_s)
            if now_s - began_s - turn.waited_s >= SLOW_AFTER_S:
                self._note_slow(namespace, turn)
            else:
                namespace.active_max = self._share
                namespace.is_slow = namespace.is_slow and self._was_slow(namespace.key)
            self._forget_unused(namespace.key, *expired)
            self._wake.set()

    def _leave_place(self, turn: _Turn, namespace: _Namespace[Command]) -> None:
        """Whatever others do: its command may never end."""
        if turn.has_place:
            turn.has_place = False
            self._placed -= 1
            self._note_slow(namespace, turn)
            self._wake.set()

    def _note_slow(self, namespace: _Namespace[Command], turn: _Turn) -> None:
        namespace.is_slow, namespace.active_max = True, UNKNOWN_SHARE
        turn.end_request()
        blamed = namespace.key if turn.slowest is None else turn.slowest
        self._slow_lately.note(blamed, asyncio.get_running_loop().time())

    def _was_slow(self, key: Hashable) -> bool:
        """Lately, or one of its namespaces."""
        members = key if isinstance(key, tuple) else ()
        return key in self._slow_lately or any(member in self._slow_lately for member in members)

    def _forget_unused(self, *keys: Hashable) -> None:
        for key in keys:
            namespace = self._namespaces.get(key)
            is_used = namespace is None or namespace.waiting or namespace.active
            if not is_used and key not in self._slow_lately:
                del self._namespaces[key]
