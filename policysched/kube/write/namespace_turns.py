"""Which command of a writer is carried out next: namespaces in turn, and those whose commands take long leave their places.

    put ──► waiting ──take──► prompt ──────────────────────────────────► finished
                         │       └── not finished after SLOW_AFTER_S ──► slow, and its place is free
                         └── of a slow namespace: beside the prompt ones, few at a time

A command can take for ever, such as one that a webhook of its namespace makes fail: it is repeated. A namespace is slow
from its first slow command until SLOW_FOR_S after the last one, or until one is prompt again. Binds have their own rules
(`kube.write.bind_queue`).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

SLOW_AFTER_S = 1.0
SLOW_FOR_S = 60.0
SLOW_MAX = 32
"""Slow commands that leave their places; half of them, if they are slow from the beginning. So many connections may wait for
webhooks."""
UNKNOWN_SHARE = 2
"""Commands of a namespace at a time until one was prompt."""

Command = TypeVar("Command")


@dataclass(slots=True, eq=False)
class _Namespace(Generic[Command]):
    key: Hashable
    waiting: deque[Command] = field(default_factory=deque)
    active: int = 0
    active_max: int = UNKNOWN_SHARE
    slow: int = 0
    slow_until_s: float = 0.0


class NamespaceTurns(Generic[Command]):
    """At most `workers` prompt commands at a time, three quarters of them of one namespace, those of a namespace in their
    order. A namespace may be any key that stands for whoever can make the command slow."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._share = max(1, workers * 3 // 4)
        self._namespaces: dict[Hashable, _Namespace[Command]] = {}
        self._ring: deque[_Namespace[Command]] = deque()  # those with waiting commands
        self._prompt = self._slow = self._size = 0
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
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                while (begun := self._begin(loop.time())) is not None:
                    if wait_until_allowed is not None:
                        await wait_until_allowed()
                    group.create_task(self._carry_out(*begun, carry_out))
                await self._wake.wait()

    def _begin(self, now_s: float) -> tuple[_Namespace[Command], Command, bool] | None:
        """The next command, its namespace, and whether it is prompt. It has a place now."""
        for _ in range(len(self._ring)):
            namespace = self._ring[0]
            self._ring.rotate(-1)
            is_slow = namespace.slow > 0 or now_s < namespace.slow_until_s
            has_place = self._slow < SLOW_MAX // 2 if is_slow else self._prompt < self._workers
            if has_place and namespace.active < namespace.active_max:
                self._take_place(namespace, 1, is_slow=is_slow)
                namespace.active += 1
                command = namespace.waiting.popleft()
                if not namespace.waiting:
                    self._ring.pop()
                return namespace, command, is_slow
        return None

    def _take_place(self, namespace: _Namespace[Command], count: int, *, is_slow: bool) -> None:
        """-1: give it back."""
        if is_slow:
            self._slow += count
            namespace.slow += count
        else:
            self._prompt += count

    async def _carry_out(
        self,
        namespace: _Namespace[Command],
        command: Command,
        is_slow: bool,
        carry_out: Callable[[Command], Awaitable[None]],
    ) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()

        def become_slow() -> None:
            nonlocal is_slow
            if not is_slow and self._slow < SLOW_MAX:
                self._take_place(namespace, -1, is_slow=False)
                self._take_place(namespace, 1, is_slow=True)
                is_slow = True
                self._wake.set()

        timer = loop.call_later(SLOW_AFTER_S, become_slow)
        try:
            await carry_out(command)
        finally:
            timer.cancel()
            self._take_place(namespace, -1, is_slow=is_slow)
            namespace.active -= 1
            self._size -= 1
            namespace.slow_until_s, namespace.active_max = 0.0, self._share
            if loop.time() - began_s >= SLOW_AFTER_S:
                namespace.active_max = UNKNOWN_SHARE
                namespace.slow_until_s = loop.time() + SLOW_FOR_S
                loop.call_later(SLOW_FOR_S, self._forget, namespace)
            self._forget(namespace)

    def _forget(self, namespace: _Namespace[Command]) -> None:
        """Unless it is still in use."""
        self._wake.set()
        is_slow = asyncio.get_running_loop().time() < namespace.slow_until_s
        if not (namespace.waiting or namespace.active or is_slow):
            self._namespaces.pop(namespace.key, None)
