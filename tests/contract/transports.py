"""A common client for every kind of API server: a `Transport`, with a blocking interface.

`ApiClient` runs each request until its response before it returns. Between two calls neither the
client nor a server on the same loop makes progress.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import aiohttp
import orjson

from policysched.kube.client import list_parts
from policysched.kube.client.api import ApiClient
from policysched.kube.client.transport import (
    JSON,
    ApiRequest,
    ApiResponse,
    ApiStream,
    Transport,
    TransportError,
)

Json = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"

PATIENCE_S = 120.0
"""A generous time-out: it costs nothing unless a test fails."""


class HttpTransport:
    """A `Transport` over aiohttp, without code of the scheduler."""

    def __init__(self, url: str, context: ssl.SSLContext | None = None):
        self._url = url
        self._context = context
        self._session: aiohttp.ClientSession | None = None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._context) if self._context else aiohttp.TCPConnector()
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session

    async def request(self, request: ApiRequest) -> ApiResponse:
        async with self._send(request) as answer:
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return ApiResponse(answer.status, await answer.read(), headers)

    @asynccontextmanager
    async def stream(self, request: ApiRequest) -> AsyncIterator[ApiStream]:
        async with self._send(request) as answer:

            async def chunks() -> AsyncGenerator[bytes, None]:
                try:
                    async for chunk in answer.content.iter_any():
                        yield chunk
                except aiohttp.ClientError as error:
                    raise TransportError(str(error)) from error

            headers = {name.lower(): value for name, value in answer.headers.items()}
            yield ApiStream(answer.status, headers, chunks())

    @asynccontextmanager
    async def _send(self, request: ApiRequest) -> AsyncIterator[aiohttp.ClientResponse]:
        kind = {"Content-Type": request.content_type} if request.body else {}
        headers = {**kind, "Accept": request.accept}
        try:
            async with self._opened().request(
                request.method,
                self._url + request.path,
                params=dict(request.params),
                data=request.body or None,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=request.timeout_s),
            ) as answer:
                yield answer
        except (aiohttp.ClientError, TimeoutError) as error:
            raise TransportError(str(error)) from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


@dataclass(frozen=True)
class Answer:
    """A status, and the body decoded from JSON; `{}` if it is not JSON."""

    status: int
    json: Json

    @property
    def version(self) -> str:
        return str(self.json["metadata"]["resourceVersion"])

    @property
    def names(self) -> list[str]:
        """The names of a list's items."""
        return [item["metadata"]["name"] for item in self.json["items"]]

    def ok(self) -> "Answer":
        assert self.status < 300, f"{self.status}: {self.json}"
        return self


class Watch:
    """An open watch, read event by event."""

    def __init__(self, run: Callable[[Any], Any], stream: ApiStream):
        self._run = run
        self._chunks = stream.chunks.__aiter__()
        self._buffer = b""
        self.status = stream.status

    def next(self, *, within_s: float = PATIENCE_S) -> Json:
        """The next event. Fails if none arrives in time, or if the watch ends."""
        event = self.next_or_end(within_s=within_s)
        assert event is not None, "the watch ended"
        return event

    def next_or_end(self, *, within_s: float = PATIENCE_S) -> Json | None:
        """The next event, or None if the watch ends."""
        event: Json | None = self._run(asyncio.wait_for(self._next(), within_s))
        return event

    def next_of(self, event_type: str, *, within_s: float = PATIENCE_S) -> Json:
        while (event := self.next(within_s=within_s))["type"] != event_type:
            pass
        return event

    def ends(self, *, within_s: float = PATIENCE_S) -> bool:
        """True if it ends without another event."""
        return self.next_or_end(within_s=within_s) is None

    async def _next(self) -> Json | None:
        while b"\n" not in self._buffer:
            try:
                self._buffer += await anext(self._chunks)
            except StopAsyncIteration:
                assert not self._buffer, f"the watch ended within a line: {self._buffer!r}"
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        event: Json = orjson.loads(line)
        return event


class Api:
    """An API server under test. `make_history_old` makes every version up to now too old (410)."""

    def __init__(self, runner: asyncio.Runner, transport: Transport, *, make_history_old: Callable[[], None]):
        self._runner = runner
        self.transport = transport
        self.make_history_old = make_history_old

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = JSON,
        **params: str,
    ) -> Answer:
        encoded = b"" if body is None else orjson.dumps(body)
        request = ApiRequest(method, path, params, encoded, content_type, timeout_s=PATIENCE_S, accept=accept)
        answer = self._runner.run(self.transport.request(request))
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        return Answer(answer.status, orjson.loads(answer.body) if is_json else {})

    def get(self, path: str, **params: str) -> Answer:
        return self.request("GET", path, **params)

    def listed_in_parts(self, path: str) -> list[list[Json]]:
        """The items of each part of a list that is read as the scheduler does, one object in each."""

        async def read() -> list[list[Json]]:
            with patch.object(list_parts, "PART_BYTES", 1):
                pages = ApiClient(self.transport).pages(path, {}, page_size=500)
                return [page.items async for page in pages]

        return self._runner.run(read())

    def post(self, path: str, body: Json, **params: str) -> Answer:
        return self.request("POST", path, body, **params)

    def put(self, path: str, body: Json, **params: str) -> Answer:
        return self.request("PUT", path, body, **params)

    def patch(self, path: str, patch: Any, content_type: str = MERGE, **params: str) -> Answer:
        return self.request("PATCH", path, patch, content_type=content_type, **params)

    def delete(self, path: str, options: Json | None = None, **params: str) -> Answer:
        return self.request("DELETE", path, options, **params)

    @contextmanager
    def watch(self, path: str, **params: str) -> Iterator[Watch]:
        manager = self.transport.stream(
            ApiRequest("GET", path, {"watch": "true", **params}, timeout_s=PATIENCE_S)
        )
        stream = self._runner.run(_enter(manager))
        try:
            yield Watch(self._runner.run, stream)
        finally:
            self._runner.run(_leave(manager))

    def namespace(self) -> str:
        """Create a namespace with a service account, and return its name."""
        answer = self.post("/api/v1/namespaces", {"metadata": {"generateName": "contract-"}}).ok()
        name = str(answer.json["metadata"]["name"])
        account = self.post(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
        assert account.status in (201, 409), account
        return name


async def _enter(manager: Any) -> ApiStream:
    stream: ApiStream = await manager.__aenter__()
    return stream


async def _leave(manager: Any) -> None:
    await manager.__aexit__(None, None, None)
