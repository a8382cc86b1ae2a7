"""One HTTP request to an API server, whoever carries it.

The real carrier is an aiohttp session (`kube.client.session`), the simulated one a call into the API server in memory
(`sandbox.transport`). Everything else in `kube` is written against this protocol and so runs unchanged in both worlds.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """`path` starts with `/api` and has no query; `params` are not yet URL-encoded."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = "application/json"
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """A whole answer. `headers` has lower-case names."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class TransportError(Exception):
    """No answer came: refused, cut, timed out. The server may or may not have acted on the request."""


class Transport(Protocol):
    """Carries requests. Raises `TransportError` where no whole answer came; every status is an answer."""

    async def request(self, request: ApiRequest) -> ApiResponse: ...

    def stream(self, request: ApiRequest) -> AbstractAsyncContextManager["ApiStream"]:
        """An answer that is read while it comes: a watch. `timeout_s` bounds the wait for its first byte."""
        ...


@dataclass(frozen=True, slots=True)
class ApiStream:
    """An answer still under way. `chunks` yields bytes as they come, cut anywhere, and raises `TransportError`
    where the stream breaks; it ends where the server ended it."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
