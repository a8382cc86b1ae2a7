"""The HTTP transport to an API server: `kubernetes.aio` loads a kubeconfig, aiohttp carries the requests, except for
writes without a proxy (`write_connections`).

The client library handles kubeconfig files, contexts and exec plugins; only its result
(address, credentials, certificates, proxy) is used. Its model classes would cost more time than a scheduling decision.
It is imported when a kubeconfig is read, because the import takes half a second; a pod reads none (`service_account.py`).
"""

import asyncio
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import quote
from urllib.request import getproxies, proxy_bypass

import aiohttp
import yaml
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from policysched.files import UnreadableFile, is_file, memory_folder, read_text
from policysched.http_errors import describe_http_error
from policysched.kube.client.admission import is_denial_by_admission
from policysched.kube.client.service_account import ServiceAccount, in_cluster
from policysched.kube.client.transport import (
    CONNECTIONS_MAX_DEFAULT,
    ERROR_BODY_BYTES_MAX,
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    AnswerTooLong,
    ApiRequest,
    ApiResponse,
    ApiStream,
    RequestNotSent,
    TransportError,
)
from policysched.kube.client.write_connections import WriteConnections, WriteRefused, request_head
from policysched.yaml_values import parse_yaml

log = logging.getLogger(__name__)

TOKEN_FILE_RELOAD_INTERVAL_S = 60.0
READ_BUFFER_BYTES = 1024 * 1024
"""Of a response, until its reader takes it. With aiohttp's 64 KiB the lines of large pods took six times as many passes of the
event loop, each of which waits for a slice of decisions."""

READ_ERRORS = (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError, asyncio.IncompleteReadError)
"""What aiohttp raises if no complete response arrives."""


class BadKubeconfig(Exception):
    """A kubeconfig that is missing, unreadable or inconsistent. The message is one line."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Which cluster, with which identity. `kubeconfig` None: the pod's service account, or else the files that kubectl
    reads. `connections_max` bounds the pool; further requests wait for a connection."""

    kubeconfig: Path | None = None
    context: str | None = None
    connections_max: int = CONNECTIONS_MAX_DEFAULT
    user_agent: str = "policysched"


class _ClientConfiguration(Protocol):
    """The part of `kubernetes.aio.client.Configuration` that is used."""

    host: str
    ssl_ca_cert: str | None
    cert_file: str | None
    key_file: str | None
    verify_ssl: bool
    proxy: str | None
    tls_server_name: str | None

    async def get_api_key_with_prefix(self, identifier: str) -> str | None: ...


class _FencedBody(aiohttp.BytesPayload):
    """Asks `may_write` when the connection is there, after which the headers and this body leave in one piece. A process
    that stalled while it waited for a connection must not send what it decided before."""

    def __init__(self, body: bytes, content_type: str, may_write: Callable[[], bool]) -> None:
        super().__init__(body, content_type=content_type)
        self._may_write = may_write
        self.was_refused = False

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        if not self._may_write():
            self.was_refused = True
            raise ConnectionAbortedError("the request must not be sent")
        await super().write_with_length(writer, content_length)


class HttpTransport:
    """`kube.client.transport.Transport` over HTTP. Use it inside one event loop, as an async context manager.

    `load` reloads the configuration: a kubeconfig's token file every minute, its exec plugin and a pod's service account
    after a 401.
    """

    def __init__(
        self,
        configured: _ClientConfiguration,
        settings: ConnectionSettings,
        load: Callable[[], Awaitable[_ClientConfiguration]],
        *,
        token_in_file: bool = False,
    ) -> None:
        self._settings = settings
        self._every_header = {"User-Agent": settings.user_agent}
        self._load = load
        self._token_in_file = token_in_file
        self._client: aiohttp.ClientSession | None = None
        self._writes: WriteConnections | None = None
        self._loading = asyncio.Lock()
        self._apply_configuration(configured)

    def _apply_configuration(self, configured: _ClientConfiguration) -> None:
        self._configuration = configured
        self._base = configured.host.rstrip("/")
        self._proxy = configured.proxy or _proxy_of_environment(self._base)
        url = URL(self._base)
        self._authority, self._url_path = url.raw_authority.rpartition("@")[2], url.raw_path.rstrip("/")
        self._tls: ssl.SSLContext | bool = (
            _ssl_context(configured) if self._base.startswith("https:") else True
        )
        self._loaded_s = time.monotonic()
        if self._client is not None:
            if self._writes is not None:
                self._writes.close()
            self._writes = self._write_connections()

    def _write_connections(self) -> WriteConnections | None:
        """None: through a proxy."""
        url, tls = URL(self._base), self._tls
        if self._proxy is not None or url.host is None or url.port is None:
            return None
        return WriteConnections(
            url.host,
            url.port,
            tls=tls if isinstance(tls, ssl.SSLContext) else None,
            server_hostname=self._configuration.tls_server_name,
            connections_max=self._settings.connections_max,
        )

    @property
    def host(self) -> str:
        """The server's address, for display."""
        return self._base

    async def __aenter__(self) -> "HttpTransport":
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._settings.connections_max, keepalive_timeout=60),
            # Each request has its own time-out; a watch has an idle time-out instead.
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=READ_BUFFER_BYTES,
            headers=self._every_header,
            max_headers=HEADERS_MAX,
            max_field_size=HEADER_BYTES_MAX,
        )
        self._writes = self._write_connections()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None
        if self._writes is not None:
            self._writes.close()
            self._writes = None

    async def request(self, request: ApiRequest) -> ApiResponse:
        """Raises TransportError. After a 401 the credentials are reloaded and the request is sent once more."""
        answer = await self._request_once(request)
        is_refused = answer.status == 401 and not is_denial_by_admission(answer.body)
        if is_refused and await self._reload_credentials():
            answer = await self._request_once(request)
        return answer

    async def _request_once(self, request: ApiRequest) -> ApiResponse:
        headers = await self._headers()
        if request.may_write is not None and self._writes is not None:
            return await self._write(self._writes, request, headers, request.may_write)
        body: bytes | _FencedBody = request.body
        if request.may_write is not None:
            body = _FencedBody(request.body, request.content_type, request.may_write)
        try:
            async with asyncio.timeout(request.timeout_s), self._send(request, headers, body) as answer:
                return ApiResponse(
                    answer.status, await _read_body(answer, request), _lower_case_names(answer.headers)
                )
        except READ_ERRORS as error:
            if isinstance(body, _FencedBody) and body.was_refused:
                raise RequestNotSent(request) from None
            raise TransportError(f"{request.method} {request.path}: {describe_http_error(error)}") from error

    async def _write(
        self,
        connections: WriteConnections,
        request: ApiRequest,
        headers: Mapping[str, str],
        may_write: Callable[[], bool],
    ) -> ApiResponse:
        head = request_head(
            request.method,
            f"{self._url_path}{request.path}",
            _query(tuple(request.params.items())),
            len(request.body),
            (
                ("Host", self._authority),
                *self._every_header.items(),
                *headers.items(),
                ("Accept", request.accept),
                ("Content-Type", request.content_type),
            ),
        )
        try:
            return await connections.send(
                head, request.body, timeout_s=request.timeout_s, may_write=may_write
            )
        except WriteRefused:
            raise RequestNotSent(request) from None
        except READ_ERRORS as error:
            raise TransportError(f"{request.method} {request.path}: {describe_http_error(error)}") from error

    @asynccontextmanager
    async def stream(self, request: ApiRequest) -> AsyncIterator[ApiStream]:
        """`timeout_s` bounds the wait for the response headers."""
        answer = await self._open(request)
        if answer.status == 401 and await self._reload_credentials():
            answer.release()
            answer = await self._open(request)
        try:
            yield ApiStream(answer.status, _lower_case_names(answer.headers), _chunks(answer))
        finally:
            answer.close()  # an unfinished watch blocks its connection: it cannot be reused

    async def _open(self, request: ApiRequest) -> aiohttp.ClientResponse:
        headers = await self._headers()
        try:
            async with asyncio.timeout(request.timeout_s):
                answer: aiohttp.ClientResponse = await self._send(request, headers, request.body)
                return answer
        except READ_ERRORS as error:
            raise TransportError(f"{request.method} {request.path}: {describe_http_error(error)}") from error

    def _send(self, request: ApiRequest, headers: Mapping[str, str], body: bytes | _FencedBody) -> Any:
        assert self._client is not None, "the session is not open"
        kind = {"Content-Type": request.content_type} if request.body else {}
        query = _query(tuple(request.params.items()))
        return self._client.request(
            request.method,
            URL(f"{self._base}{request.path}{'?' if query else ''}{query}", encoded=True),
            data=body or None,
            headers={**headers, **kind, "Accept": request.accept},
            ssl=self._tls,
            proxy=self._proxy,
            server_hostname=self._configuration.tls_server_name,
            allow_redirects=False,
        )

    async def _headers(self) -> dict[str, str]:
        if self._token_in_file and time.monotonic() - self._loaded_s > TOKEN_FILE_RELOAD_INTERVAL_S:
            await self._reload_credentials()
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        return {"Authorization": token} if token else {}

    async def _reload_credentials(self) -> bool:
        """Reload the credentials, once for all concurrent callers. False if that failed."""
        requested_s = time.monotonic()
        async with self._loading:
            if self._loaded_s >= requested_s:
                return True
            try:
                self._apply_configuration(await self._load())
            except BadKubeconfig as error:
                log.warning(
                    "cannot renew the credentials; keeping the current ones", extra={"error": str(error)}
                )
                return False
            return True


async def connect(settings: ConnectionSettings) -> HttpTransport:
    """A transport, not yet open. Sends nothing. Raises BadKubeconfig."""
    if settings.kubeconfig is None and settings.context is None and in_cluster():
        account = await _load_in_cluster()
        try:
            return HttpTransport(account, settings, _load_in_cluster)
        except (OSError, ssl.SSLError) as error:
            raise BadKubeconfig(f"the pod's service account: {describe_http_error(error)}") from error

    async def load() -> _ClientConfiguration:
        return (await _load_kubeconfig(settings))[0]

    configured, token_in_file = await _load_kubeconfig(settings)
    try:
        return HttpTransport(configured, settings, load, token_in_file=token_in_file)
    except (OSError, ssl.SSLError) as error:
        raise BadKubeconfig(f"{_kubeconfig_files(settings)}: {describe_http_error(error)}") from error


def _ensure_home() -> None:
    """kubernetes.aio resolves the home folder on import, which fails for a user without a passwd entry."""
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = "/"  # as container runtimes set it


async def _load_in_cluster() -> _ClientConfiguration:
    try:
        return ServiceAccount()
    except UnreadableFile as error:
        raise BadKubeconfig(f"the pod's service account: {error}") from None


async def _load_kubeconfig(settings: ConnectionSettings) -> tuple[_ClientConfiguration, bool]:
    """The configuration, and whether its token is in a file that may be rotated."""
    _ensure_home()
    from kubernetes.aio import config
    from kubernetes.aio.client import Configuration

    files = _kubeconfig_files(settings)
    if not any(is_file(name) for name in files.split(os.pathsep)):
        raise BadKubeconfig(f"{files}: no such kubeconfig file")
    configured = Configuration()
    try:
        _require_yaml_map(files)
        loader = await config.load_kube_config(
            config_file=files,
            context=settings.context,
            client_configuration=configured,
            persist_config=False,
            temp_file_path=memory_folder(),
        )
        user = getattr(loader, "_user", None)
        if user is not None and "exec" in user and not (configured.api_key or configured.cert_file):
            raise BadKubeconfig(f"{files}: the exec plugin {user['exec']['command']} returned no credentials")
        return cast(_ClientConfiguration, configured), user is not None and "tokenFile" in user
    except (config.ConfigException, yaml.YAMLError, OSError) as error:
        raise BadKubeconfig(f"{files}: {describe_http_error(error)}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadKubeconfig(f"{files}: not a valid kubeconfig file: {describe_http_error(error)}") from error


def _require_yaml_map(files: str) -> None:
    """Reject what the client library reports without a useful message: a list, a string, an empty file."""
    for name in files.split(os.pathsep):
        try:
            document = parse_yaml(read_text(name)) if is_file(name) else {}
        except UnreadableFile as error:
            raise BadKubeconfig(f"{name}: {error}") from None
        if not isinstance(document, dict):
            type_name = {list: "a list", str: "a string", type(None): "nothing"}.get(
                type(document), "a scalar"
            )
            raise BadKubeconfig(f"{name}: not a kubeconfig file: expected a YAML map, got {type_name}")


def _kubeconfig_files(settings: ConnectionSettings) -> str:
    """One path, or several as kubectl reads them from KUBECONFIG."""
    if settings.kubeconfig is not None:
        return str(settings.kubeconfig)
    return os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())


def _ssl_context(configured: _ClientConfiguration) -> ssl.SSLContext:
    """Python's default without VERIFY_X509_STRICT, which the certificate authorities of many clusters do not satisfy
    (RFC 5280's key usage). The chain and the name are verified."""
    context = ssl.create_default_context(cafile=configured.ssl_ca_cert)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if configured.cert_file:
        context.load_cert_chain(configured.cert_file, configured.key_file)
    if not configured.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        log.warning("TLS verification is disabled by the kubeconfig", extra={"server": configured.host})
    return context


@lru_cache(maxsize=64)
def _query(params: tuple[tuple[str, str], ...]) -> str:
    """Nearly all requests have the same few."""
    return "&".join(f"{quote(key)}={quote(value, safe='')}" for key, value in params)


def _proxy_of_environment(base: str) -> str | None:
    """HTTPS_PROXY and NO_PROXY apply, except to loopback addresses, as in Go. They are read once: aiohttp's `trust_env`
    reads them, and a netrc file, on another thread for each request, which doubles the cost of a bind."""
    url = URL(base)
    if _is_loopback(base) or proxy_bypass(url.host or ""):
        return None
    proxy = getproxies().get(url.scheme)
    if proxy is not None and proxy.startswith("https:"):
        log.warning("ignoring the proxy of the environment: HTTPS to a proxy is not supported")
        return None
    return proxy


def _is_loopback(base: str) -> bool:
    host = URL(base).host or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")


async def _chunks(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.content.iter_any():
            yield chunk
    except READ_ERRORS as error:
        raise TransportError(f"the stream was interrupted: {describe_http_error(error)}") from error


async def _read_body(answer: aiohttp.ClientResponse, request: ApiRequest) -> bytes:
    """Of an error the beginning: a webhook writes its message. Closing the connection ends the rest."""
    is_error = answer.status >= 300
    bytes_max = ERROR_BODY_BYTES_MAX if is_error else request.answer_bytes_max
    if bytes_max is None:
        return await answer.read()
    chunks, size = list[bytes](), 0
    async for chunk in answer.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > bytes_max:
            answer.close()
            if not is_error:
                raise AnswerTooLong(request)
            break
    return b"".join(chunks)


def _lower_case_names(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
