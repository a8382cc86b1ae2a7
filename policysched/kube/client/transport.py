"""The protocol of a transport: one HTTP request to an API server.

`kube.client.session` implements it over aiohttp, `sandbox.transport` by calls into the API server in memory. The rest
of `kube` depends on this protocol alone and runs unchanged over both.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

JSON = "application/json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
"""For requests that need only metadata: the API server would write, and the main loop parse, an object of up to a megabyte."""
METADATA_LIST_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
"""The same for a list."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """`path` starts with `/api` and has no query; `params` are not yet URL-encoded. `may_write`, if given, is called
    right before the request is written to its open connection, and may forbid it (`RequestNotSent`). `accept`: the media
    types of the answer. `answer_bytes_max`: a longer one is not read to its end (`AnswerTooLong`)."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = JSON
    timeout_s: float = 10.0
    may_write: Callable[[], bool] | None = None
    accept: str = JSON
    answer_bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """A complete response. `headers` has lower-case names; it may be empty for a status of 2xx."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


ERROR_BODY_BYTES_MAX = 256 * 1024
"""Limit of a response with another status than 2xx: it can contain a webhook's message of any length. The rest is not read."""
HEADERS_MAX = 8192
HEADER_BYTES_MAX = 32 * 1024
"""Limits of a response. The API server passes on 4,096 characters of a webhook's warnings, in one header or in one each."""
BODY_BYTES_MAX = 16 * 1024 * 1024
"""Limit of the response to a write: at most one object, and etcd stores at most 1.5 MiB of one."""

CONNECTIONS_MAX_DEFAULT = 256
"""All writers together need up to 150, plus two for some seconds for each namespace whose webhooks begin to hang."""


class TransportError(Exception):
    """No complete response: refused, interrupted, timed out. The server may or may not have acted on the request."""


class RequestNotSent(TransportError):
    """`may_write` forbade it: the server has not received the request."""

    def __init__(self, request: ApiRequest) -> None:
        super().__init__(f"{request.method} {request.path}: not sent; the lease has to be renewed first")


class AnswerTooLong(TransportError):
    """Longer than `answer_bytes_max`."""

    def __init__(self, request: ApiRequest) -> None:
        super().__init__(
            f"{request.method} {request.path}: the answer is longer than {request.answer_bytes_max} bytes"
        )


class Transport(Protocol):
    """Sends requests. Raises `TransportError` without a complete response; any status is a response."""

    async def request(self, request: ApiRequest) -> ApiResponse: ...

    def stream(self, request: ApiRequest) -> AbstractAsyncContextManager["ApiStream"]:
        """A response that is read while it arrives: a watch. `timeout_s` bounds the wait for its headers."""
        ...


@dataclass(frozen=True, slots=True)
class ApiStream:
    """A response in progress. `chunks` yields bytes as they arrive, split anywhere, and raises `TransportError` if the
    connection breaks; it ends when the server closes the stream."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
