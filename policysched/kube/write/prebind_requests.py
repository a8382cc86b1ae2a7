"""The requests for one `Prebind`, a release or a deletion, each repeated until it has a final response.

Where a patch is denied after a request for it that had no answer, the server may still carry that one out. Its devices stay
reserved until it cannot any more (`settle`), as a pod's node while its bind is unknown (`kube.write.bind`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from policysched.kube.client.api import (
    MERGE_PATCH,
    ApiClient,
    ApiStatusError,
    ServerError,
)
from policysched.kube.client.transport import JSON, METADATA_ONLY, RequestNotSent
from policysched.kube.write.idempotent_retry import RequestRetrier
from policysched.kube.write.open_writes import SERVER_TIMEOUT_S

Json = dict[str, Any]
IsCurrent = Callable[[], bool] | None
_SERVER_TIMEOUT_PARAMS = {"timeout": f"{SERVER_TIMEOUT_S:g}s"}


@dataclass(slots=True)
class PrebindRequests:
    """Each is retried for `timeout_s` while `is_current`, and waits for `response_timeout_s` for its response."""

    api: ApiClient
    retrier: RequestRetrier
    response_timeout_s: float
    timeout_s: float
    is_current: IsCurrent = None
    _unknown_until_s: float = 0.0

    async def patch(self, path: str, body: Json) -> Json:
        """The metadata of the patched object. Raises as `retry_until_answered`."""
        return await self._write(lambda fence: self.patch_once(path, body, fence))

    async def patch_whole(self, path: str, body: Json) -> Json:
        """The patched object. Raises as `retry_until_answered`."""
        return await self._write(lambda fence: self.patch_once(path, body, fence, JSON))

    async def create(self, path: str, body: Json) -> Json:
        """The created object. Raises as `retry_until_answered`."""
        timeout_s = self.response_timeout_s
        return await self._write(
            lambda fence: self.api.create(
                path, body, params=_SERVER_TIMEOUT_PARAMS, timeout_s=timeout_s, is_current=fence
            )
        )

    async def delete(self, path: str, options: Json) -> None:
        """Raises as `retry_until_answered`."""

        async def send() -> None:
            await self.api.delete(
                path, options, params=_SERVER_TIMEOUT_PARAMS, timeout_s=self.response_timeout_s
            )

        await self.retrier.retry_until_answered(send, self.timeout_s)

    async def get(self, path: str) -> Json:
        """The current object. Raises as `retry_until_answered`."""
        return await self.retrier.retry_until_answered(
            lambda: self.api.get(path, timeout_s=self.response_timeout_s), self.timeout_s
        )

    async def patch_once(
        self, path: str, body: Json, is_current: IsCurrent, accept: str = METADATA_ONLY
    ) -> Json:
        return await self.api.patch(
            path,
            body,
            MERGE_PATCH,
            params=_SERVER_TIMEOUT_PARAMS,
            timeout_s=self.response_timeout_s,
            is_current=is_current,
            accept=accept,
        )

    async def settle(self) -> bool:
        """Wait until no earlier request can be carried out any more. Returns whether one could."""
        unknown_s = self._unknown_until_s - asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, unknown_s))
        return unknown_s > 0

    async def _write(self, send: Callable[[IsCurrent], Awaitable[Json]]) -> Json:
        """A request that may have left is repeated also after a stall: its effect must be known."""
        loop, may_have_left = asyncio.get_running_loop(), False

        def is_current() -> bool:
            return may_have_left or self.is_current is None or self.is_current()

        async def send_once() -> Json:
            nonlocal may_have_left
            sent_s = loop.time()
            try:
                return await send(is_current)
            except RequestNotSent:
                raise
            except BaseException as error:
                may_have_left = True
                if not isinstance(error, ApiStatusError) or isinstance(error, ServerError):
                    # The way to the server is bounded by the client's time-out, the lifetime there by the request's.
                    given_up_s = max(sent_s + self.response_timeout_s, loop.time())
                    self._unknown_until_s = given_up_s + SERVER_TIMEOUT_S
                raise

        answer = await self.retrier.retry_until_answered(send_once, self.timeout_s, is_current)
        self._unknown_until_s = 0.0
        return answer
