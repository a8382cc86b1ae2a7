"""Which command of a writer is carried out next: namespaces in turn, and slow ones apart from the others.

    put ──► waiting ──► one of `workers` places ──────────────────────► finished
               │                └── after SLOW_AFTER_S: the place is free, and the namespace slow
               └── of a slow namespace: without a place, each request with one of `workers` permits

A command can take for ever, such as one that a webhook of its namespace makes fail: it is repeated. A namespace is slow until
a command is prompt SLOW_FOR_S after its last slow one, or until it has had none for so long. One that is not slow never waits
for those that are. Binds have their own rules (`kube.write.bind_queue`).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Generic, TypeVar

SLOW_AFTER_S = 1.0
SLOW_FOR_S = 60.0
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
    slow_s: float | None = None
    """When it was last seen so. None: it is not slow."""
    is_timed: bool = False


@dataclass(slots=True, eq=False)
class _Turn:
    """Of one command."""

    permits: asyncio.Semaphore
    has_place: bool
    waited_s: float = 0.0
    """For permits."""


_turn: ContextVar[_Turn | None] = ContextVar("turn", default=None)


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
    namespace may be any key that stands for whoever can make the command slow. Commands send with `send_in_turn`."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._share = max(1, workers * 3 // 4)
        self._permits = asyncio.Semaphore(workers)
        self._namespaces: dict[Hashable, _Namespace[Command]] = {}
        self._ring: deque[_Namespace[Command]] = deque()  # those with waiting commands
        self._placed = self._size = 0
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Commands that are not finished."""
        return self._size

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
            is_slow = namespace.slow_s is not None
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
        _turn.set(turn)
        timer = loop.call_later(SLOW_AFTER_S, self._leave_place, turn, namespace)
        try:
            await carry_out(command)
        finally:
            timer.cancel()
            self._placed -= turn.has_place
            namespace.active -= 1
            self._size -= 1
            if loop.time() - began_s - turn.waited_s >= SLOW_AFTER_S:
                self._note_slow(namespace)
            else:
                namespace.active_max = self._share
                if not self._was_slow_lately(namespace):
                    namespace.slow_s = None
            self._forget_unused(namespace)
            self._wake.set()

    def _leave_place(self, turn: _Turn, namespace: _Namespace[Command]) -> None:
        """Whatever others do: its command may never end."""
        if turn.has_place:
            turn.has_place = False
            self._placed -= 1
            self._note_slow(namespace)
            self._wake.set()

    def _note_slow(self, namespace: _Namespace[Command]) -> None:
        namespace.slow_s, namespace.active_max = asyncio.get_running_loop().time(), UNKNOWN_SHARE
        self._look_later(namespace)

    def _was_slow_lately(self, namespace: _Namespace[Command]) -> bool:
        now_s = asyncio.get_running_loop().time()
        return namespace.slow_s is not None and now_s < namespace.slow_s + SLOW_FOR_S

    def _look_later(self, namespace: _Namespace[Command]) -> None:
        if not namespace.is_timed and namespace.slow_s is not None:
            namespace.is_timed = True
            asyncio.get_running_loop().call_at(namespace.slow_s + SLOW_FOR_S, self._look, namespace)

    def _look(self, namespace: _Namespace[Command]) -> None:
        namespace.is_timed = False
        if self._was_slow_lately(namespace):
            self._look_later(namespace)
        else:
            self._forget_unused(namespace)

    def _forget_unused(self, namespace: _Namespace[Command]) -> None:
        is_used = namespace.waiting or namespace.active or self._was_slow_lately(namespace)
        if not is_used and self._namespaces.get(namespace.key) is namespace:
            del self._namespaces[namespace.key]
