"""Tracks which writes the API server may still carry out, and which namespaces make writes slow.

    request ──written──► open ──answered, and carried out or refused──────────────────► closed
       │                  └── no answer, or one that tells nothing ──SERVER_TIMEOUT_S──► closed
       └── its namespace is not admitted: WritesClosed

A leader that stops must not hand over while a write is open: the next one could give the same node, devices or volume to another
pod. It need not wait for commands: they are repeated until they are answered, and a webhook of one namespace can prevent that for
ever. So this counts requests, whatever they are about, below all writers of decisions.
The server acts on a request for at most `SERVER_TIMEOUT_S` after it received it, which is before it answers or the client
gives up.
"""

import asyncio
from collections import deque
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from policysched.kube.client.admission import is_refused_by_admission
from policysched.kube.client.api import status_error_from_response
from policysched.kube.client.transport import ApiRequest, ApiResponse, ApiStream, RequestNotSent, Transport
from policysched.kube.write.namespace_turns import SLOW_FOR_S
from policysched.kube.write.recent_keys import RecentKeys

SERVER_TIMEOUT_S = 5.0
"""How long the server may act on one request, set by `?timeout=`."""

LATE_AFTER_S = 0.5
"""A write that is open for longer is late."""

_REPEATED = (401, 429)


class WritesClosed(RequestNotSent):
    """The process stops and sends no more writes, or none of this namespace. The server has not received this one."""


@dataclass(slots=True, eq=False)
class _Write:
    namespace: str
    sent_s: float | None = None


class OpenWrites:
    """A transport for writes with `?timeout=`. From `begin_stop` on it sends none in namespaces whose latest write failed or was
    late, since these would not be answered soon. While `is_closed` it sends none at all."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._unanswered: set[_Write] = set()
        self._unknown: deque[float] = deque()  # until when each write without an outcome may be carried out
        self._troubled = RecentKeys[str](SLOW_FOR_S)
        self._is_stopping = False
        self.is_closed = False

    def begin_stop(self) -> None:
        self._is_stopping = True

    def admits(self, namespace: str) -> bool:
        return not self.is_closed and not (self._is_stopping and namespace in self._troubled)

    def any_open(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        return bool(self._unanswered) or any(until_s > now_s for until_s in self._unknown)

    def any_late(self) -> bool:
        """Whether a write is open for LATE_AFTER_S, or has failed without an outcome. Counts the late ones' namespaces as slow."""
        now_s = asyncio.get_running_loop().time()
        late = [each for each in self._unanswered if _is_late(each, now_s)]
        for write in late:
            self._note_trouble(write.namespace, now_s)
        return bool(late) or any(until_s > now_s for until_s in self._unknown)

    async def request(self, request: ApiRequest) -> ApiResponse:
        """Raises WritesClosed, and what the inner transport raises."""
        if request.method == "GET":
            return await self._inner.request(request)
        write, may_write = _Write(_namespace(request)), request.may_write
        loop = asyncio.get_running_loop()

        def begin() -> bool:
            if not self.admits(write.namespace) or not (may_write is None or may_write()):
                return False
            write.sent_s = loop.time()
            self._unanswered.add(write)
            return True

        if not self.admits(write.namespace):
            raise WritesClosed(request)
        try:
            response = await self._inner.request(replace(request, may_write=begin))
        except RequestNotSent:
            if not self.admits(write.namespace):
                raise WritesClosed(request) from None
            raise
        except BaseException:
            # The request reaches the server within the client's time-out, or never.
            self._note_failure(write, loop.time(), request.timeout_s)
            raise
        else:
            self._note_response(write, response, loop.time(), request.timeout_s)
            return response
        finally:
            self._unanswered.discard(write)

    def stream(self, request: ApiRequest) -> AbstractAsyncContextManager[ApiStream]:
        return self._inner.stream(request)

    def _note_response(self, write: _Write, response: ApiResponse, now_s: float, timeout_s: float) -> None:
        if response.status < 500 and response.status not in _REPEATED:
            if _is_late(write, now_s):
                self._note_trouble(write.namespace, now_s)
            else:
                self._troubled.forget(write.namespace)
            return
        error = status_error_from_response(response)
        if response.status < 500 or is_refused_by_admission(error.message):
            self._note_trouble(write.namespace, now_s)
        else:
            # An error without a reason is a proxy's, which may not have forwarded the request yet.
            self._note_failure(write, now_s, 0.0 if error.reason else timeout_s)

    def _note_failure(self, write: _Write, now_s: float, transit_s: float) -> None:
        self._note_trouble(write.namespace, now_s)
        if write.sent_s is None:
            return
        while self._unknown and self._unknown[0] <= now_s:
            self._unknown.popleft()
        # After a freeze, a process or machine gives up later than its time-out, and sends then what it had not sent yet.
        self._unknown.append(max(write.sent_s + transit_s, now_s) + SERVER_TIMEOUT_S)

    def _note_trouble(self, namespace: str, now_s: float) -> None:
        self._troubled.expire(now_s)
        self._troubled.note(namespace, now_s)


def _is_late(write: _Write, now_s: float) -> bool:
    return write.sent_s is not None and now_s - write.sent_s > LATE_AFTER_S


def _namespace(request: ApiRequest) -> str:
    """Empty if the object has none."""
    return request.path.partition("/namespaces/")[2].partition("/")[0]
