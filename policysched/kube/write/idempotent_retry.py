"""Retries a request until the server gives a final response, or a time-out ends.

    request ──► success, or a final error status ─────────────────────► the caller
            ├── not sent (the lease has to be renewed first) ─────────────► the same request again, while leading
            └── no response, 401, 429, 5xx ──backoff──► the same request again ──time-out──► RequestAbandoned

For idempotent writes: each names the UID or the version of its object. Binds have their own rules (`kube.write.bind`).
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from random import Random
from typing import Protocol, TypeVar

from policysched.kube.client.api import ApiErrors, ApiStatusError, ServerError, TooManyRequests, Unauthorized
from policysched.kube.client.backoff import Backoff
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import RequestNotSent
from policysched.kube.write.namespace_turns import send_in_turn

Answer = TypeVar("Answer")


class RequestAbandoned(Exception):
    """No final response in time, or this process is no longer the leader. `server_answers`: the server answered with an error,
    or answered others since the request first failed, so the cause is what the request is about."""

    def __init__(self, message: str, *, server_answers: bool = False) -> None:
        super().__init__(message)
        self.server_answers = server_answers


class RetrySettings(Protocol):
    """The delays between attempts."""

    @property
    def retry_initial_s(self) -> float: ...
    @property
    def retry_max_s(self) -> float: ...


class RequestRetrier:
    """`activity` names the requests to `Connectivity`. Nothing is sent while `may_send` is false."""

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

    async def retry_until_answered(
        self,
        send: Callable[[], Awaitable[Answer]],
        timeout_s: float,
        is_current: Callable[[], bool] | None = None,
        *,
        error_timeout_s: float = math.inf,
    ) -> Answer:
        """Retry a request until it succeeds or fails finally, while `is_current()`. It is abandoned after `timeout_s`, or after
        `error_timeout_s` if the server answers (`server_answers`). Raises a final ApiStatusError, or RequestAbandoned."""
        settings, loop = self._settings, asyncio.get_running_loop()
        backoff = Backoff(self._random, initial_s=settings.retry_initial_s, max_s=settings.retry_max_s)
        began_s = loop.time()
        successes, has_failed, server_answers = self._connectivity.successes_total, False, False
        while True:
            if not self._may_send():
                raise RequestAbandoned("no longer the leader")
            if is_current is not None and not is_current():
                raise RequestAbandoned("this process stalled after the decision")
            try:
                answer = await send_in_turn(send)
            except RequestNotSent:
                await asyncio.sleep(settings.retry_initial_s)
            except ApiErrors as error:
                if isinstance(error, ApiStatusError) and not isinstance(
                    error, Unauthorized | TooManyRequests | ServerError
                ):
                    self._connectivity.record_success(self._activity)
                    raise
                # Often caused by a webhook for one namespace: it can even make the server close the connection.
                has_successes = self._connectivity.successes_total > successes
                others_answered = has_successes and not isinstance(error, Unauthorized)  # no webhook's fault
                successes = self._connectivity.successes_total
                if isinstance(error, ServerError | TooManyRequests):
                    server_answers |= isinstance(error, ServerError)
                    self._connectivity.record_error_response(self._activity, error)
                else:
                    server_answers |= has_failed and others_answered
                    self._connectivity.record_no_answer(
                        self._activity, error, others_answered=others_answered
                    )
                wait_s = backoff.next_delay_s(error)
                has_failed, until_s = True, min(timeout_s, error_timeout_s) if server_answers else timeout_s
                if loop.time() + wait_s > began_s + until_s:
                    message = f"no response within {until_s:g} s: {error}"
                    raise RequestAbandoned(message, server_answers=server_answers) from error
                await asyncio.sleep(wait_s)
            else:
                self._connectivity.record_success(self._activity)
                return answer
