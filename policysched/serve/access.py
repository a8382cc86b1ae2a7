"""Who may read what: authentication and authorization, delegated to the API server as kube-scheduler does.

    bearer token ──► TokenReview ──────────┐
    client certificate of the client CA ───┼─► user ──► SubjectAccessReview of path and verb ──► allowed, or 403
    neither ──► system:anonymous ──────────┘

Both answers are cached for ten seconds, kube-scheduler's TTL, so a revoked permission is effective after at most that time.
Front proxies (`X-Remote-User`) are not trusted: only the API server's aggregation layer would send them, and nothing is
aggregated here.
"""

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from aiohttp import web

from policysched.serve.request_rate import AddressBuckets, new_bucket

CACHE_TTL_S = 10.0
_CACHE_MAX = 1024
_REVIEWS_MAX = 8
"""Reviews of one kind at a time."""
_REVIEWS_PER_CLIENT_MAX = 16
"""Reviews of one kind that one address causes and that are not answered, whether or not it still waits for them. Beyond, a
client could fill the queue while the API server is slow, and others would wait for all of it."""
_VIEWERS_MAX = 128
_NAMESPACES_PER_VIEWER_MAX = 512
"""Of which a viewer learns in `CACHE_TTL_S` whether he may list their pods: each of the page's documents names 64 at most, and his
requests for pods any. Beyond, the answer is no: he neither asks the API server without end nor drops answers of others."""
_NEW_REVIEWS_PER_S = 25.0
"""Reviews of all addresses for what the API server has not allowed before, such as forged tokens; as many again are for addresses
with few of them. Twice as many at once."""
_FEW_REVIEWS_PER_S = 2.0
"""Such reviews of an address with few."""
_TOKEN_CHARACTERS_MAX = 16 * 1024

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class User:
    """A user as the API server names it. `extra` has what its authorizer may read besides."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


USER = web.RequestKey("user", User)
"""The user of a request, once it is allowed."""

ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


@dataclass(frozen=True, slots=True)
class AccessDecision:
    allowed: bool
    reason: str

    def __bool__(self) -> bool:
        return self.allowed


class ReviewFailed(Exception):
    """The API server did not answer a review. The message is one line."""


class AccessReviewer(Protocol):
    """The API server's reviews, which raise ReviewFailed. `client_ca` is the PEM text of the cluster's CA of client
    certificates: empty if there is none, or it may not be read; None if the server does not answer."""

    async def review_token(self, token: str) -> User | None: ...
    async def review_access(self, user: User, verb: str, path: str) -> AccessDecision: ...
    async def review_list_pods(self, user: User, namespace: str | None) -> AccessDecision: ...
    async def client_ca(self) -> str | None: ...


OpenReviewer = Callable[[], AbstractAsyncContextManager[AccessReviewer]]
"""Opens the reviewer with its connection, on the loop that calls it."""


class TooManyReviews(Exception):
    """The client's reviews that are under way are enough, or those of all clients lately."""


class AccessDenied(Exception):
    """`status` is 401, 403 or 503; the message is for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class AccessControl:
    """Checks requests against the API server, whose answers it caches."""

    def __init__(self, reviewer: AccessReviewer, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._reviewer, self._monotonic_s = reviewer, monotonic_s
        rate = _NewReviewRate(monotonic_s)
        self._users: _ReviewCache[bytes, User | None] = _ReviewCache(monotonic_s, rate=rate)
        self._decisions: _ReviewCache[tuple[User, str, str], AccessDecision] = _ReviewCache(
            monotonic_s, rate=rate
        )
        self._pod_lists: OrderedDict[User, _ReviewCache[str | None, AccessDecision]] = OrderedDict()
        self._pod_list_slots = asyncio.Semaphore(_REVIEWS_MAX)

    async def check(
        self,
        token: str | None,
        certificate_user: User | None,
        verb: str,
        path: str,
        wait_turn: Callable[[], Awaitable[None]],
        client: str = "",
    ) -> User:
        """The user of an allowed request. Raises AccessDenied and TooManyReviews. `wait_turn` is awaited before a review; it
        bounds the rate of the reviews that one client causes, and may raise. `client`: its address."""
        try:
            user = certificate_user or await self._user_of(token, wait_turn, client)
            decision = await self._decisions.get(
                (user, verb, path), lambda: self._reviewer.review_access(user, verb, path), wait_turn, client
            )
        except ReviewFailed as error:
            raise AccessDenied(
                503, f"cannot authenticate or authorize this request with the API server: {error}"
            ) from error
        if not decision.allowed:
            reason = f": {decision.reason}" if decision.reason else ""
            raise AccessDenied(403, f'user "{user.name}" cannot {verb} path "{path}"{reason}')
        return user

    async def may_list_pods(self, user: User, namespace: str | None) -> bool:
        """Of a namespace, or of all (None). False if the API server does not answer, or the user has asked for too many."""

        async def at_once() -> None:
            pass

        reviews = self._pod_lists.setdefault(user, _ReviewCache(self._monotonic_s, self._pod_list_slots))
        self._pod_lists.move_to_end(user)
        if len(self._pod_lists) > _VIEWERS_MAX:
            self._pod_lists.popitem(last=False)
        if not reviews.has_room(namespace, _NAMESPACES_PER_VIEWER_MAX):
            return False
        try:
            decision = await reviews.get(
                namespace, lambda: self._reviewer.review_list_pods(user, namespace), at_once
            )
        except ReviewFailed:
            return False
        return decision.allowed

    async def _user_of(
        self, token: str | None, wait_turn: Callable[[], Awaitable[None]], client: str
    ) -> User:
        if token is None:
            return ANONYMOUS
        if not token or len(token) > _TOKEN_CHARACTERS_MAX or not token.isascii():
            raise AccessDenied(401, "the bearer token is not valid")
        digest = hashlib.sha256(token.encode()).digest()  # so that no token stays in memory
        user = await self._users.get(digest, lambda: self._reviewer.review_token(token), wait_turn, client)
        if user is None:
            raise AccessDenied(401, "the bearer token is not valid")
        return user


class _NewReviewRate:
    """A limit on the reviews of all clients together for what the API server has not allowed before."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._by_client = AddressBuckets(_FEW_REVIEWS_PER_S)
        self._of_many, self._of_few = new_bucket(_NEW_REVIEWS_PER_S), new_bucket(_NEW_REVIEWS_PER_S)

    def take(self, client: str) -> None:
        """Raises TooManyReviews."""
        now_s, own = self._monotonic_s(), self._by_client.of(client)
        has_few = own.delay_s(now_s) == 0
        if has_few:
            own.take(now_s)
        shared = self._of_few if has_few else self._of_many
        if shared.delay_s(now_s) > 0:
            raise TooManyReviews
        shared.take(now_s)


class _ReviewCache(Generic[Key, Value]):
    """Reviews for `CACHE_TTL_S`; above `_CACHE_MAX` the oldest are dropped. Concurrent reviews of one key are one."""

    def __init__(
        self,
        monotonic_s: Callable[[], float],
        slots: asyncio.Semaphore | None = None,
        rate: _NewReviewRate | None = None,
    ) -> None:
        """`slots` and `rate`: of several caches together. What was allowed last is reviewed again whatever the rate, so that
        forged tokens delay no reader."""
        self._monotonic_s = monotonic_s
        self._rate = rate
        self._allowed: OrderedDict[Key, None] = OrderedDict()
        self._entries: OrderedDict[Key, tuple[float, Value]] = OrderedDict()
        self._under_way: dict[Key, asyncio.Task[Value]] = {}
        self._under_way_of: Counter[str] = Counter()
        self._slots = slots or asyncio.Semaphore(_REVIEWS_MAX)

    def has_room(self, key: Key, keys_max: int) -> bool:
        """Whether the key is one of that many whose reviews are under way or have not expired."""
        now_s = self._monotonic_s()
        while self._entries and next(iter(self._entries.values()))[0] <= now_s:
            self._entries.popitem(last=False)
        is_known = key in self._entries or key in self._under_way
        return is_known or len(self._entries) + len(self._under_way) < keys_max

    async def get(
        self,
        key: Key,
        review: Callable[[], Coroutine[Any, Any, Value]],
        wait_turn: Callable[[], Awaitable[None]],
        client: str = "",
    ) -> Value:
        """Without a `client`, its reviews are not limited. Raises TooManyReviews."""
        entry = self._entries.get(key)
        if entry is not None and self._monotonic_s() < entry[0]:
            return entry[1]
        await wait_turn()
        task = self._under_way.get(key)
        if task is None:
            if client and self._under_way_of[client] >= _REVIEWS_PER_CLIENT_MAX:
                raise TooManyReviews
            if self._rate is not None and key not in self._allowed:
                self._rate.take(client)
            self._under_way_of[client] += 1
            task = self._under_way[key] = asyncio.create_task(self._review(key, review))
            task.add_done_callback(lambda done: self._reviewed(key, client, done))
        return await asyncio.shield(task)  # others may wait for it too

    async def _review(self, key: Key, review: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        async with self._slots:
            value = await review()
        self._entries.pop(key, None)
        self._entries[key] = (self._monotonic_s() + CACHE_TTL_S, value)
        self._allowed.pop(key, None)
        if value and self._rate is not None:
            self._allowed[key] = None
        for kept in (self._entries, self._allowed):
            if len(kept) > _CACHE_MAX:
                kept.popitem(last=False)
        return value

    def _reviewed(self, key: Key, client: str, task: asyncio.Task[Value]) -> None:
        self._under_way.pop(key, None)
        self._under_way_of[client] -= 1
        if not self._under_way_of[client]:
            del self._under_way_of[client]
        if not task.cancelled():
            task.exception()  # the caller may no longer wait for it


def bearer_token(authorization: str | None) -> str | None:
    """The token of an `Authorization` header; None without one of that scheme."""
    if authorization is None:
        return None
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def certificate_user(certificate: Mapping[str, Any] | None) -> User | None:
    """The user of a verified client certificate (`SSLSocket.getpeercert`), as the API server reads it: the last common name,
    and the organizations as groups."""
    if not certificate:
        return None
    fields = [pair for part in certificate.get("subject", ()) for pair in part]
    name = next((value for key, value in reversed(fields) if key == "commonName"), "")
    groups = tuple(value for key, value in fields if key == "organizationName")
    return User(name, (*groups, "system:authenticated")) if name else None
