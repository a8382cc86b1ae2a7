"""Chooses a writer's next command: namespaces take turns, and slow ones do not delay the others.

    put ──► waiting ──► one of `workers` places ──────────────────────► finished
               │                └── after SLOW_AFTER_S: the place is free, and the namespace slow
               ├── of an unknown namespace: one of UNKNOWN_PLACES * `workers` other places, one per namespace, held while a
               │   request hangs
               └── of a slow namespace: no place; each request needs one of `workers` // 2 permits, or one of `workers` other
                   permits if a request of the namespace hung lately

A namespace is known if a command of it was prompt in the last PROMPT_FOR_S. An unknown one may hang, and any number of them
can begin to hang at once, so known namespaces have places of their own.
A command can take for ever: a webhook of its namespace can make it fail, and it is repeated. A namespace is slow until a
command is prompt SLOW_FOR_S after its last slow one, or it has had none for so long. The
others never wait for slow ones. A command of several namespaces says which one each request depends on (`blame`). The one
whose request took longest is at fault; any command that it is part of is then slow from the start. Binds have their own
rules (`kube.write.bind_queue`).
While the server refuses all connections, every namespace whose requests are repeated becomes slow, and prompt again when the
server answers. So only those of which a single request hung in the last SLOW_FOR_S share the permits of hanging ones.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from policysched.kube.write.recent_keys import RecentKeys

SLOW_AFTER_S = 1.0
SLOW_FOR_S = 60.0
"""How long a namespace counts as slow lately after it was last slow."""
PROMPT_FOR_S = 600.0
"""How long a namespace stays known after a prompt command."""
SLOW_SHARE = 2
"""Concurrent commands of a slow namespace, until one is prompt. An unknown namespace has one."""
UNKNOWN_PLACES = 4

Command = TypeVar("Command")
Answer = TypeVar("Answer")


@dataclass(slots=True, eq=False)
class _Namespace(Generic[Command]):
    key: Hashable
    waiting: deque[Command] = field(default_factory=deque)
    active: int = 0
    active_max: int = 1
    is_slow: bool = False


@dataclass(slots=True, eq=False)
class _Places:
    """`hang`: a place that its command has left stays taken until the request that was sent from it ends."""

    count: int
    hang: bool
    wake: asyncio.Event
    taken: int = 0
    unknown: set[Hashable] = field(default_factory=set)
    """Unknown namespaces that have a place."""

    def take(self, unknown: set[Hashable]) -> bool:
        if self.taken >= self.count or not self.unknown.isdisjoint(unknown):
            return False
        self.taken += 1
        self.unknown |= unknown
        return True


@dataclass(slots=True, eq=False)
class _Turn:
    """The state of a command that has begun."""

    slow: "_SlowRequests"
    key: Hashable
    places: "_Places | None"
    """The places of which the command has one. None: it has left it, or had none."""
    taken: "_Places | None"
    """The places of which one is not free for others because of it, perhaps until its request ends (`_Places.hang`)."""
    unknown: set[Hashable]
    """Its namespaces that were unknown when it began."""
    is_sending: bool = False
    sent_s: float = 0.0
    """When its last request from its place was sent."""
    waited_s: float = 0.0
    """The time spent waiting for permits."""
    blamed: Hashable = None
    """The namespace of the current request, since `since_s` on a clock that stops for `waited_s`; None: the whole key."""
    since_s: float = 0.0
    slowest: Hashable = None
    """The namespace of the longest request, and its duration. Not of the largest sum: that would blame one with many victims."""
    longest_s: float = 0.0

    def leave_place(self) -> None:
        self.places = None
        if self.taken is not None and not (self.taken.hang and self.is_sending):
            self.taken.taken -= 1
            self.taken.unknown -= self.unknown
            self.taken.wake.set()
            self.taken = None

    async def send_from_place(self, send: Callable[[], Awaitable[Answer]]) -> Answer:
        self.is_sending, self.sent_s = True, asyncio.get_running_loop().time()
        try:
            return await send()
        finally:
            self.is_sending = False
            if self.places is None:
                self.leave_place()

    def end_request(self) -> None:
        now_s = asyncio.get_running_loop().time() - self.waited_s
        if now_s - self.since_s > self.longest_s:
            self.slowest, self.longest_s = self.blamed, now_s - self.since_s
        self.since_s = now_s


class _SlowRequests:
    """Permits of requests without a place. A permit of a namespace whose requests did not hang lately is free for others as soon
    as its request hangs, up to `_late_max` at a time."""

    def __init__(self, workers: int) -> None:
        self._permits = asyncio.Semaphore(max(1, workers // 2))
        self._permits_of_hanging = asyncio.Semaphore(workers)
        self._hung_lately = RecentKeys[Hashable](SLOW_FOR_S)
        self._late_max = max(1, workers // 2)
        self._late = 0
        """Hanging requests whose permits are free for others."""

    def note_late(self, key: Hashable) -> None:
        """A request of this namespace hangs."""
        now_s = asyncio.get_running_loop().time()
        self._hung_lately.expire(now_s)
        self._hung_lately.note(key, now_s)

    async def send(self, turn: _Turn, send: Callable[[], Awaitable[Answer]]) -> Answer:
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        self._hung_lately.expire(asked_s)
        key = turn.key if turn.blamed is None else turn.blamed
        hangs = any(member in self._hung_lately for member in (key, *_members(key)))
        permits = self._permits_of_hanging if hangs else self._permits
        await permits.acquire()
        turn.waited_s += loop.time() - asked_s
        is_late = False

        def note_late() -> None:
            nonlocal is_late
            self.note_late(key)
            if not hangs and self._late < self._late_max:
                is_late = True
                self._late += 1
                permits.release()

        timer = loop.call_later(SLOW_AFTER_S, note_late)
        try:
            return await send()
        finally:
            timer.cancel()
            if is_late:
                self._late -= 1
            else:
                permits.release()


_turn: ContextVar[_Turn | None] = ContextVar("turn", default=None)


def blame(namespace: str) -> None:
    """Say which of its namespaces can make the next requests of the current command slow."""
    turn = _turn.get()
    if turn is not None:
        turn.end_request()
        turn.blamed = namespace


async def send_in_turn(send: Callable[[], Awaitable[Answer]]) -> Answer:
    """Send one request of the current command; without a place, wait for a permit first. Raises what `send` raises."""
    turn = _turn.get()
    if turn is None:
        return await send()
    if turn.places is not None:
        return await turn.send_from_place(send)
    return await turn.slow.send(turn, send)


class NamespaceTurns(Generic[Command]):
    """At most `workers` commands of known namespaces have places, three quarters of them of one namespace; each namespace's begin
    in order. A namespace may be any key for whoever can make the command slow; a tuple stands for several. Commands send their
    requests with `send_in_turn`."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._share = max(1, workers * 3 // 4)
        self._slow_requests = _SlowRequests(workers)
        self._namespaces: dict[Hashable, _Namespace[Command]] = {}
        self._slow_lately = RecentKeys[Hashable](SLOW_FOR_S)
        self._ring: deque[_Namespace[Command]] = deque()  # those with waiting commands
        self._prompt_lately = RecentKeys[Hashable](PROMPT_FOR_S)
        self._size = 0
        self._wake = asyncio.Event()
        self._known = _Places(workers, False, self._wake)
        self._unknown = _Places(UNKNOWN_PLACES * workers, True, self._wake)

    def __len__(self) -> int:
        """Commands that are not finished."""
        return self._size

    def prompt(self, admits: Callable[[str], bool] = lambda _: True) -> int:
        """The number of unfinished commands in these namespaces, without slow ones."""
        return sum(
            len(namespace.waiting) + namespace.active
            for namespace in self._namespaces.values()
            if not namespace.is_slow and all(admits(str(member)) for member in _members(namespace.key))
        )

    def waiting(self, key: Hashable) -> int:
        """The number of commands of a namespace that are not begun."""
        namespace = self._namespaces.get(key)
        return 0 if namespace is None else len(namespace.waiting)

    def put(self, key: Hashable, command: Command) -> None:
        namespace = self._namespaces.get(key)
        if namespace is None:
            namespace = self._namespaces[key] = _Namespace(key)
            namespace.active_max = 1 if self._unknown_of(key) else self._share
        if not namespace.waiting:
            self._ring.append(namespace)
        namespace.waiting.append(command)
        self._size += 1
        self._wake.set()

    def discard(self, key: Hashable) -> None:
        """Drop the newest waiting command of this namespace, which must have one."""
        namespace = self._namespaces[key]
        namespace.waiting.pop()
        self._size -= 1
        if not namespace.waiting:
            self._ring.remove(namespace)
            self._forget_unused(key)

    def withdraw(self, key: Hashable, command: Command) -> bool:
        """Drop a waiting command. Returns false if it has begun or was not put."""
        namespace = self._namespaces.get(key)
        if namespace is None or command not in namespace.waiting:
            return False
        namespace.waiting.remove(command)
        self._size -= 1
        if not namespace.waiting:
            self._ring.remove(namespace)
            self._forget_unused(key)
        return True

    async def run(
        self,
        carry_out: Callable[[Command], Awaitable[None]],
        wait_until_allowed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Run until cancelled, or `carry_out` raises. `wait_until_allowed` is awaited before each command."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                while (begun := self._begin()) is not None:
                    if wait_until_allowed is not None:
                        await wait_until_allowed()
                    group.create_task(self._carry_out(*begun, carry_out))
                await self._wake.wait()

    def _begin(self) -> tuple[_Namespace[Command], Command, _Turn] | None:
        """The next command that may begin, and its namespace and turn; None: there is none."""
        for _ in range(len(self._ring)):
            namespace = self._ring[0]
            self._ring.rotate(-1)
            unknown = self._unknown_of(namespace.key)
            places = self._places_for(namespace, unknown)
            if namespace.active < namespace.active_max and (places is None or places.take(unknown)):
                namespace.active += 1
                command = namespace.waiting.popleft()
                if not namespace.waiting:
                    self._ring.pop()
                return namespace, command, _Turn(self._slow_requests, namespace.key, places, places, unknown)
        return None

    def _unknown_of(self, key: Hashable) -> set[Hashable]:
        lately = self._prompt_lately
        return set() if key in lately else {each for each in _members(key) if each not in lately}

    def _places_for(self, namespace: _Namespace[Command], unknown: set[Hashable]) -> _Places | None:
        namespace.is_slow = namespace.is_slow or self._was_slow(namespace.key)
        if namespace.is_slow:
            return None
        return self._unknown if unknown else self._known

    async def _carry_out(
        self,
        namespace: _Namespace[Command],
        command: Command,
        turn: _Turn,
        carry_out: Callable[[Command], Awaitable[None]],
    ) -> None:
        loop = asyncio.get_running_loop()
        began_s = turn.since_s = loop.time()
        _turn.set(turn)
        timer = loop.call_later(SLOW_AFTER_S, self._leave_place, turn, namespace)
        try:
            await carry_out(command)
        finally:
            timer.cancel()
            turn.leave_place()
            namespace.active -= 1
            self._size -= 1
            now_s = loop.time()
            expired = self._slow_lately.expire(now_s)
            self._prompt_lately.expire(now_s)
            if now_s - began_s - turn.waited_s >= SLOW_AFTER_S:
                self._note_slow(namespace, turn)
            else:
                namespace.active_max = self._share
                namespace.is_slow = namespace.is_slow and self._was_slow(namespace.key)
                for key in {namespace.key, *_members(namespace.key)}:
                    self._prompt_lately.note(key, now_s)
            self._forget_unused(namespace.key, *expired)
            self._wake.set()

    def _leave_place(self, turn: _Turn, namespace: _Namespace[Command]) -> None:
        """Free the place after SLOW_AFTER_S, even if nothing else waits: the command may never end. A request that was sent half of
        that ago or earlier counts as hanging: earlier ones of the command took the rest."""
        if turn.places is not None:
            hangs = turn.is_sending and asyncio.get_running_loop().time() - turn.sent_s >= SLOW_AFTER_S / 2
            turn.leave_place()
            blamed = self._note_slow(namespace, turn)
            if hangs:
                self._slow_requests.note_late(blamed)
            self._wake.set()

    def _note_slow(self, namespace: _Namespace[Command], turn: _Turn) -> Hashable:
        """Mark the namespace as slow. Returns the one at fault."""
        namespace.is_slow, namespace.active_max = True, SLOW_SHARE
        turn.end_request()
        blamed = namespace.key if turn.slowest is None else turn.slowest
        self._slow_lately.note(blamed, asyncio.get_running_loop().time())
        return blamed

    def _was_slow(self, key: Hashable) -> bool:
        """Whether the key, or a namespace it stands for, was slow lately."""
        return key in self._slow_lately or any(member in self._slow_lately for member in _members(key))

    def _forget_unused(self, *keys: Hashable) -> None:
        for key in keys:
            namespace = self._namespaces.get(key)
            is_used = namespace is None or namespace.waiting or namespace.active
            if not is_used and key not in self._slow_lately:
                del self._namespaces[key]


def _members(key: Hashable) -> tuple[Hashable, ...]:
    """The namespaces for which the key stands."""
    return key if isinstance(key, tuple) else (key,)
