"""Requests that are repeated until the server has said what became of them, or until it is no use any more.

    request ──► answered, or a refusal that stands ─────────────────────► the caller
            └── no answer, 401, 429, 5xx ──wait──► the same request again ──for so long──► GaveUp

For writes that may be made twice: each names the UID, or the version, that it is about. Binds have rules of their own (`kube.write.bind`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Protocol, TypeVar

from policysched.kube.client.api import ApiProblem, Refused, ServerFault, Throttled, Unauthorized
from policysched.kube.client.backoff import Backoff
from policysched.kube.client.connectivity import Connectivity

Answer = TypeVar("Answer")


class GaveUp(Exception):
    """No answer that settles it came in time, or we may not send any more."""


class Patience(Protocol):
    """How long to wait between two tries."""

    @property
    def retry_first_s(self) -> float: ...
    @property
    def retry_longest_s(self) -> float: ...


class Settling:
    """`activity` is what connectivity is told about. Nothing is sent while `may_send` says no."""

    def __init__(
        self,
        activity: str,
        patience: Patience,
        *,
        random: Random,
        connectivity: Connectivity,
        may_send: Callable[[], bool],
    ) -> None:
        self._activity = activity
        self._patience = patience
        self._random = random
        self._connectivity = connectivity
        self._may_send = may_send

    async def until_settled(self, ask: Callable[[], Awaitable[Answer]], give_up_s: float) -> Answer:
        """Repeat a request until it is answered with yes or a refusal that stands. Raises that refusal, or GaveUp."""
        patience, loop = self._patience, asyncio.get_running_loop()
        backoff = Backoff(self._random, first_s=patience.retry_first_s, longest_s=patience.retry_longest_s)
        gives_up_s = loop.time() + give_up_s
        while True:
            if not self._may_send():
                raise GaveUp("not leading any more")
            try:
                answer = await ask()
            except ApiProblem as error:
                if isinstance(error, Refused) and not isinstance(
                    error, Unauthorized | Throttled | ServerFault
                ):
                    self._connectivity.worked(self._activity)
                    raise
                self._connectivity.failed(self._activity, error)
                wait_s = backoff.failed(error)
                if loop.time() + wait_s > gives_up_s:
                    raise GaveUp(f"no answer within {give_up_s:g} s: {error}") from error
                await asyncio.sleep(wait_s)
            else:
                self._connectivity.worked(self._activity)
                return answer
