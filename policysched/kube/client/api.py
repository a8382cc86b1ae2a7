"""The API client: the verbs of the Kubernetes API that the scheduler uses, and their errors.

    Exception
     ├── TransportError           no complete response: the server may or may not have acted (kube.client.transport)
     ├── InvalidResponse          the response is not the API's: a proxy's page, half a line
     └── ApiStatusError           the server answered with another status than 2xx
          ├── Unauthorized        401: the credentials; they may be renewed
          ├── Forbidden           403: RBAC
          ├── NotFound            404
          ├── Conflict            409: already exists, another version, another UID, already bound
          ├── Expired             410: the version is too old; also an error object in a watch
          ├── TooManyRequests     429
          ├── AdmissionDenied     401, 404, 409, 410 or 429, chosen by a webhook: it means none of the above
          └── ServerError         5xx: the outcome of a write is unknown, as without a response

Every other status is a plain `ApiStatusError`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from policysched.kube.client.admission import is_denied_by_admission, message_of_cut_status
from policysched.kube.client.json_values import read_json
from policysched.kube.client.large_metadata import large_metadata, metadata_list
from policysched.kube.client.list_parts import read_list
from policysched.kube.client.transport import (
    JSON,
    AnswerTooLong,
    ApiRequest,
    ApiResponse,
    ApiStream,
    Transport,
    TransportError,
)
from policysched.kube.client.watch_lines import WatchEvent, watch_events

Json = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


class InvalidResponse(Exception):
    """The response is not one of the Kubernetes API."""


class ApiStatusError(Exception):
    """`message` is the server's; `retry_after_s` is its `Retry-After`, if any."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message or f"{status} {reason}")
        self.status = status
        self.reason = reason
        self.message = message or f"{status} {reason}"
        self.retry_after_s = retry_after_s


class Unauthorized(ApiStatusError):
    pass


class Forbidden(ApiStatusError):
    pass


class NotFound(ApiStatusError):
    pass


class Conflict(ApiStatusError):
    pass


class Expired(ApiStatusError):
    pass


class TooManyRequests(ApiStatusError):
    pass


class ServerError(ApiStatusError):
    pass


class AdmissionDenied(ApiStatusError):
    pass


ApiErrors = (TransportError, InvalidResponse, ApiStatusError)
"""Every error of a request, for callers that retry after any of them."""

PAGE_BYTES_MAX = 8 * 1024 * 1024
"""Of a page of a list, which is read as a whole. A longer one is requested again with fewer objects, down to one."""
METADATA_PAGE_BYTES_MAX = 64 * 1024 * 1024
"""Of a page of metadata alone, which is not parsed but for what identifies the objects."""
LIST_BYTES_MAX = 256 * 1024 * 1024
"""Of a list without pages."""

MESSAGE_CHARACTERS_MAX = 4096
"""Limit of an error's message, which can contain a webhook's."""

_ERROR_BY_STATUS: Mapping[int, type[ApiStatusError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
    429: TooManyRequests,
}


@dataclass(frozen=True, slots=True)
class ListPage:
    """A page of a list, or a part of it: its items, the version of the whole list, and the token of the next page."""

    items: list[Json]
    resource_version: str
    next_page: str


class ApiClient:
    """Requests by verb. Each raises `TransportError`, `InvalidResponse` or `ApiStatusError`. Writes are sent only while
    `may_write()`, and raise `RequestNotSent` otherwise. `is_current`, if given, is a further condition, checked after it."""

    def __init__(self, transport: Transport, *, may_write: Callable[[], bool] | None = None) -> None:
        self._transport = transport
        self._may_write = may_write

    async def get(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        accept: str = JSON,
    ) -> Json:
        return await self._request_object(
            ApiRequest("GET", path, params or {}, timeout_s=timeout_s, accept=accept)
        )

    async def create(
        self,
        path: str,
        body: Json,
        *,
        params: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        is_current: Callable[[], bool] | None = None,
    ) -> Json:
        may_write = self._may_write_while(is_current)
        return await self._request_object(
            ApiRequest(
                "POST", path, params or {}, orjson.dumps(body), timeout_s=timeout_s, may_write=may_write
            )
        )

    async def replace(self, path: str, body: Json, *, timeout_s: float = 10.0) -> Json:
        return await self._request_object(
            ApiRequest("PUT", path, {}, orjson.dumps(body), timeout_s=timeout_s, may_write=self._may_write)
        )

    async def patch(
        self,
        path: str,
        body: Json | list[Json],
        content_type: str,
        *,
        params: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        is_current: Callable[[], bool] | None = None,
        accept: str = JSON,
    ) -> Json:
        may_write = self._may_write_while(is_current)
        return await self._request_object(
            ApiRequest(
                "PATCH", path, params or {}, orjson.dumps(body), content_type, timeout_s, may_write, accept
            )
        )

    def _may_write_while(self, is_current: Callable[[], bool] | None) -> Callable[[], bool] | None:
        may_write = self._may_write
        if may_write is None or is_current is None:
            return may_write or is_current
        return lambda: may_write() and is_current()

    async def delete(
        self,
        path: str,
        options: Json,
        *,
        params: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        is_current: Callable[[], bool] | None = None,
    ) -> None:
        """`options` are DeleteOptions. The response body (the object or a Status) is ignored."""
        answer = await self._transport.request(
            ApiRequest(
                "DELETE",
                path,
                params or {},
                orjson.dumps(options),
                timeout_s=timeout_s,
                may_write=self._may_write_while(is_current),
            )
        )
        if not 200 <= answer.status < 300:
            raise status_error_from_response(answer)

    async def post_discarding_response(
        self,
        path: str,
        body: bytes,
        *,
        params: Mapping[str, str],
        timeout_s: float,
        is_current: Callable[[], bool] | None = None,
    ) -> None:
        """A POST whose response body is not needed."""
        may_write = self._may_write_while(is_current)
        answer = await self._transport.request(
            ApiRequest("POST", path, params, body, timeout_s=timeout_s, may_write=may_write)
        )
        if not 200 <= answer.status < 300:
            raise status_error_from_response(answer)

    async def pages(
        self,
        path: str,
        params: Mapping[str, str],
        *,
        page_size: int,
        timeout_s: float = 60.0,
        accept: str = JSON,
    ) -> AsyncGenerator[ListPage, None]:
        """A list, page by page, with fewer objects than `page_size` where they are large, and a long page in parts. `page_size` 0
        requests everything at once. `Expired` can occur between two pages."""
        query, size = dict(params), page_size
        page_bytes_max = PAGE_BYTES_MAX if accept == JSON else METADATA_PAGE_BYTES_MAX
        while True:
            limit = {"limit": str(size)} if size else {}
            bytes_max = page_bytes_max if size else LIST_BYTES_MAX
            request = ApiRequest(
                "GET",
                path,
                {**query, **limit},
                timeout_s=timeout_s,
                accept=accept,
                answer_bytes_max=None if size == 1 else bytes_max,
            )
            try:
                body = await self._request_body(request)
            except AnswerTooLong:
                if not size:
                    raise
                size = max(1, size // 8)
                continue
            count, token = 0, ""
            async with aclosing(_read_parts(request, body)) as parts:
                async for part in parts:
                    count, token = count + len(part.items), part.next_page
                    yield part
                    await asyncio.sleep(0)  # let the event loop run between two parts
            if count:
                wanted = count * page_bytes_max // 2 // len(body)
                size = max(1, min(page_size, 2 * size, wanted))
            if not token:
                return
            query["continue"] = token

    @asynccontextmanager
    async def watch(
        self,
        path: str,
        params: Mapping[str, str],
        *,
        resource_version: str,
        server_closes_after_s: int,
        idle_timeout_s: float,
        timeout_s: float = 20.0,
        large_bytes: int | None = None,
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Events after `resource_version`, until the server or the connection ends the stream.

        The stream also ends after `idle_timeout_s` without data: the server sends bookmarks about once a minute, so
        silence means a dead connection.
        """
        query = {
            **params,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(server_closes_after_s),
        }
        request = ApiRequest("GET", path, query, timeout_s=timeout_s)
        async with self._transport.stream(request) as stream:
            if stream.status != 200:
                raise status_error_from_response(
                    ApiResponse(stream.status, await _read_all(stream), stream.headers)
                )
            yield watch_events(stream.chunks, idle_timeout_s, large_bytes=large_bytes)

    async def _request_object(self, request: ApiRequest) -> Json:
        body = await self._request_body(request)
        if request.accept != JSON and (metadata := large_metadata(body)) is not None:
            return metadata
        return await _read_object(request, body)

    async def _request_body(self, request: ApiRequest) -> bytes:
        answer = await self._transport.request(request)
        if not 200 <= answer.status < 300:
            raise status_error_from_response(answer)
        return answer.body


async def _read_object(request: ApiRequest, body: bytes) -> Json:
    with _no_json_is_invalid(request):
        return _checked_object(request, await read_json(body))


async def _read_parts(request: ApiRequest, body: bytes) -> AsyncGenerator[ListPage, None]:
    metadata = None if request.accept == JSON else metadata_list(body)
    with _no_json_is_invalid(request):
        async with aclosing(read_list(body) if metadata is None else _only(metadata)) as parts:
            async for part in parts:
                answer = _checked_object(request, part)
                meta, items = answer.get("metadata"), answer.get("items")
                if not isinstance(meta, dict) or not isinstance(items, list | None):
                    raise InvalidResponse(f"GET {request.path}: the answer is not a list")
                yield ListPage(
                    items or [], str(meta.get("resourceVersion", "")), str(meta.get("continue") or "")
                )


async def _only(part: Json) -> AsyncGenerator[Json, None]:
    yield part


@contextmanager
def _no_json_is_invalid(request: ApiRequest) -> Iterator[None]:
    try:
        yield
    except orjson.JSONDecodeError as error:
        raise InvalidResponse(f"{request.method} {request.path}: the answer is not JSON: {error}") from error


def _checked_object(request: ApiRequest, read: Any) -> Json:
    if not isinstance(read, dict):
        raise InvalidResponse(f"{request.method} {request.path}: the answer is not an object")
    return read


def status_error_from_response(answer: ApiResponse) -> ApiStatusError:
    """The exception for a status other than 2xx. The end of a Status may be missing; any other body is quoted, truncated."""
    try:
        status = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        status = None
    # The API server sends the Status of a request that timed out without a kind.
    if isinstance(status, dict) and (status.get("kind") == "Status" or status.get("status") == "Failure"):
        reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    else:
        quoted = answer.body[:200].decode(errors="replace").strip()
        reason, message = "", message_of_cut_status(answer.body) or quoted
    return status_error(answer.status, reason, message, _retry_after_s(answer.headers))


def status_error(
    status: int, reason: str, message: str, retry_after_s: float | None = None
) -> ApiStatusError:
    kind = _ERROR_BY_STATUS.get(status) or (ServerError if status >= 500 else ApiStatusError)
    chosen_by_webhook = kind in (Unauthorized, NotFound, Conflict, Expired, TooManyRequests)
    if chosen_by_webhook and is_denied_by_admission(message):
        kind = AdmissionDenied
    return kind(status, reason, message[:MESSAGE_CHARACTERS_MAX], retry_after_s)


def watch_error(status: Json) -> Exception:
    """The exception for an event of a watch with the type ERROR."""
    code = status.get("code")
    if not isinstance(code, int):
        return TransportError(f"the watch ended with an error without a status code: {status!r:.200}")
    return status_error(code, str(status.get("reason") or ""), str(status.get("message") or ""))


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Only seconds: the API server never sends a date."""
    text = headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else None


async def _read_all(stream: ApiStream) -> bytes:
    return b"".join([chunk async for chunk in stream.chunks])
