"""Requests that are repeated until the server has said what became of them, or until it is no use any more.

    request ──► answered, or a refusal that stands ─────────────────────► the caller
            └── no answer, 401, 429, 5xx ──wait──► the same request again ──for so long──► GaveUp

For writes that may be made twice: each names the UID, or the version, that it is about. Binds have rules of their own (`kube.write.bind`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Protocol, TypeVar

from policysched.kube.client.api import ApiErrors, ApiStatusError, ServerError, TooManyRequests, Unauthorized
from policysched.kube.client.backoff import Backoff
from policysched.kube.client.connectivity import Connectivity

Answer = TypeVar("Answer")


class RequestAbandoned(Exception):
    """No answer that settles it came in time, or we may not send any more."""


class RetrySettings(Protocol):
    """How long to wait between two tries."""

    @property
    def retry_initial_s(self) -> float: ...
    @property
    def retry_max_s(self) -> float: ...


class RequestRetrier:
    """`activity` is what connectivity is told about. Nothing is sent while `may_send` says no."""

    def __init__(
        self,
        activity: str,
        settings: RetrySettings,
        *,
        random: Random,
        connectivity: Connectivity,
        may_send: Callable[[], bool],
    ) -> None:
        self._activity = activity
        self._settings = settings
        self._random = random
        self._connectivity = connectivity
        self._may_send = may_send

    async def retry_until_answered(self, send: Callable[[], Awaitable[Answer]], timeout_s: float) -> Answer:
        """Repeat a request until it is answered with yes or a refusal that stands. Raises that refusal, or GaveUp."""
        patience, loop = self._settings, asyncio.get_running_loop()
        backoff = Backoff(self._random, initial_s=patience.retry_initial_s, max_s=patience.retry_max_s)
        gives_up_s = loop.time() + timeout_s
        while True:
            if not self._may_send():
                raise RequestAbandoned("no longer the leader")
            try:
                answer = await send()
            except ApiErrors as error:
                if isinstance(error, ApiStatusError) and not isinstance(
                    error, Unauthorized | TooManyRequests | ServerError
                ):
                    self._connectivity.record_success(self._activity)
                    raise
                self._connectivity.record_failure(self._activity, error)
                wait_s = backoff.next_delay_s(error)
                if loop.time() + wait_s > gives_up_s:
                    raise RequestAbandoned(f"no answer within {timeout_s:g} s: {error}") from error
                await asyncio.sleep(wait_s)
            else:
                self._connectivity.record_success(self._activity)
                return answer
