"""The HTTP transport to one Prometheus server: settings, credentials and TLS, over a shared connection pool.

Credentials are in files that are read for each query, so a rotated token takes effect at once; the TLS context is
recreated when one of its files changes. Credentials are removed from every message of a server or library. Redirects are
not followed: a gateway must not choose where credentials are sent.
"""

import asyncio
import logging
import ssl
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import aiohttp
from yarl import URL

from policysched.data_files import expand_home
from policysched.http_errors import describe_http_error
from policysched.lang.ir.declarations import Metric
from policysched.metric_sources.poll_status import PollError
from policysched.metric_sources.polling import PollingSource
from policysched.metric_sources.prometheus import RESPONSE_BYTES_MAX, PrometheusQueryClient
from policysched.metric_sources.prometheus_response import error_message
from policysched.metric_sources.source import SampleSource
from policysched.metric_sources.source_kind import SettingProblem, SourceContext
from policysched.text.sanitize import sanitize_line

log = logging.getLogger(__name__)

_CONNECTION_ERRORS = (aiohttp.ClientError, OSError, asyncio.IncompleteReadError)
"""What aiohttp raises without a complete response, besides TimeoutError."""

_CONNECTIONS_PER_SERVER = 8
_CREDENTIAL_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class BasicAuth:
    username: str
    password_file: Path


@dataclass(frozen=True, slots=True)
class PrometheusTls:
    """`ca_file` None: the system's authorities. `server_name`: the name in the certificate, if it is not the URL's host."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """`headers` are sent as they are; `header_files` name files with the values. `proxy` overrides the environment's."""

    kind: ClassVar[str] = "prometheus"

    url: str
    timeout_s: float = 10.0
    response_bytes_max: int = RESPONSE_BYTES_MAX
    bearer_token_file: Path | None = None
    basic_auth: BasicAuth | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    header_files: Mapping[str, Path] = field(default_factory=dict)
    proxy: str | None = None
    proxy_auth: BasicAuth | None = None
    tls: PrometheusTls = field(default_factory=PrometheusTls)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        tls = values.get("tls", {})
        limits = {name: values[name] for name in ("timeout_s", "response_bytes_max") if name in values}
        return cls(
            url=values["url"],
            **limits,
            bearer_token_file=_path(values, "bearer_token_file"),
            basic_auth=_basic_auth(values, "basic_auth"),
            headers=values.get("headers", {}),
            header_files={
                header: expand_home(path) for header, path in values.get("header_files", {}).items()
            },
            proxy=values.get("proxy"),
            proxy_auth=_basic_auth(values, "proxy_auth"),
            tls=PrometheusTls(
                ca_file=_path(tls, "ca_file"),
                cert_file=_path(tls, "cert_file"),
                key_file=_path(tls, "key_file"),
                server_name=tls.get("server_name"),
                verify=tls.get("verify", True),
            ),
        )

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> Iterator[SettingProblem]:
        headers, header_files = values.get("headers", {}), values.get("header_files", {})
        header_names = [header.lower() for header in (*headers, *header_files)]
        if "authorization" in (header.lower() for header in headers):
            yield (
                ("headers",),
                "credentials must not be in the settings: use bearer_token_file, basic_auth, or header_files",
            )
        credentials = [name for name in ("bearer_token_file", "basic_auth") if name in values]
        credentials += ["header_files"] * ("authorization" in header_names)
        if len(credentials) > 1:
            yield (), f"{' and '.join(credentials)} conflict; give one of them"
        if duplicates := {header for header in header_names if header_names.count(header) > 1}:
            yield (), f"the header {min(duplicates)} is given twice"
        if values.get("tls") and not values["url"].startswith("https:"):
            yield ("tls",), "the url is not https"
        if "proxy_auth" in values and "proxy" not in values:
            yield ("proxy_auth",), "there is no proxy"

    def unsupported_reason(self, metric: Metric) -> str | None:  # noqa: ARG002
        """None: a query can ask for anything."""
        return None

    def create(self, context: SourceContext) -> SampleSource:
        if not self.tls.verify:
            log.warning("TLS verification is disabled by the settings", extra={"source": context.name})
        client = PrometheusQueryClient(
            PrometheusHttpTransport(self, context.pool),
            now_ns=context.now_ns,
            response_bytes_max=self.response_bytes_max,
        )
        return PollingSource(client, context.status, now_ns=context.now_ns, random=context.random)


def _path(values: Mapping[str, Any], name: str) -> Path | None:
    return expand_home(values[name]) if name in values else None


def _basic_auth(values: Mapping[str, Any], name: str) -> BasicAuth | None:
    if name not in values:
        return None
    return BasicAuth(values[name]["username"], expand_home(values[name]["password_file"]))


class HttpConnectionPool:
    """The connections of all servers. Use it inside one event loop, as an async context manager."""

    def __init__(self, user_agent: str) -> None:
        self._user_agent = user_agent
        self._stack = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "used outside the pool's context"
        return self._session

    async def __aenter__(self) -> "HttpConnectionPool":
        self._session = await self._stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, limit_per_host=_CONNECTIONS_PER_SERVER),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                headers={"Accept": "application/json", "User-Agent": self._user_agent},
            )
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._session = None
        await self._stack.aclose()


@dataclass(frozen=True, slots=True)
class _RequestCredentials:
    """The credentials of one request. `secrets` must not appear in any message."""

    headers: Mapping[str, str]
    proxy_headers: Mapping[str, str]
    secrets: tuple[str, ...]

    def redact(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return sanitize_line(text)


class PrometheusHttpTransport:
    """A `PrometheusTransport` over HTTP."""

    def __init__(self, settings: PrometheusSettings, pool: HttpConnectionPool) -> None:
        self._settings = settings
        self._pool = pool
        self._url = URL(settings.url.rstrip("/") + "/api/v1/query")
        self._method = "POST"
        self._tls: ssl.SSLContext | None = None
        self._tls_file_stamps: tuple[object, ...] | None = None

    async def query(self, query: str) -> bytes:
        """The body of a response with status 200. Raises PollError."""
        credentials = self._credentials()
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                tls = await self._ssl_context() if self._url.scheme == "https" else None
                status, body = await self._send(query, credentials, tls)
                if status == 405 and self._method == "POST":  # some gateways allow only GET
                    self._method = "GET"
                    status, body = await self._send(query, credentials, tls)
        except TimeoutError:
            raise PollError(
                "timeout", f"no complete response within {self._settings.timeout_s:g} s"
            ) from None
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            raise PollError("tls", credentials.redact(str(error))) from None
        except aiohttp.ClientHttpProxyError as error:
            raise PollError("unreachable", credentials.redact(f"the proxy returned {error.status}")) from None
        except _CONNECTION_ERRORS as error:
            raise PollError("unreachable", credentials.redact(describe_http_error(error))) from None
        if status != 200:
            raise _status_error(status, credentials.redact(error_message(body)))
        return body

    async def _send(
        self, query: str, credentials: _RequestCredentials, tls: ssl.SSLContext | None
    ) -> tuple[int, bytes]:
        settings = self._settings
        form = {"query": query, "timeout": f"{settings.timeout_s:g}s"}
        async with self._pool.session.request(
            self._method,
            self._url,
            data=form if self._method == "POST" else None,
            params=form if self._method == "GET" else None,
            headers=credentials.headers,
            ssl=tls if tls is not None else True,
            server_hostname=settings.tls.server_name if tls is not None else None,
            proxy=settings.proxy,
            proxy_headers=credentials.proxy_headers,
            allow_redirects=False,
        ) as response:
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > settings.response_bytes_max:
                    response.close()
                    raise PollError(
                        "too_large", f"the response exceeds {settings.response_bytes_max:,} bytes"
                    )
            return response.status, bytes(body)

    # ── credentials ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _credentials(self) -> _RequestCredentials:
        settings = self._settings
        headers, secrets = dict(settings.headers), list(settings.headers.values())
        for name, path in settings.header_files.items():
            headers[name] = secret = _read_secret(path)
            secrets.append(secret)
        if settings.bearer_token_file is not None:
            token = _read_secret(settings.bearer_token_file)
            headers["Authorization"] = f"Bearer {token}"
            secrets.append(token)
        if settings.basic_auth is not None:
            headers["Authorization"] = _basic_auth_header(settings.basic_auth, secrets)
        proxy_headers: dict[str, str] = {}
        if settings.proxy_auth is not None:
            # A proxy reads the headers of a plain request, but only the CONNECT before an encrypted one.
            for_proxy = proxy_headers if self._url.scheme == "https" else headers
            for_proxy["Proxy-Authorization"] = _basic_auth_header(settings.proxy_auth, secrets)
        return _RequestCredentials(headers, proxy_headers, tuple(secret for secret in secrets if secret))

    # ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _ssl_context(self) -> ssl.SSLContext:
        files = self._settings.tls
        stamp = tuple(_file_stamp(path) for path in (files.ca_file, files.cert_file, files.key_file))
        if self._tls is None or stamp != self._tls_file_stamps:
            try:
                # In a thread: reading the system's authorities takes about 20 ms.
                self._tls = await asyncio.to_thread(make_ssl_context, files)
            except ssl.SSLError as error:
                raise PollError("tls", f"{_file_names(files)}: {sanitize_line(str(error))}") from None
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else None
                raise PollError(
                    "tls", f"{_file_names(files)}: {reason or sanitize_line(str(error))}"
                ) from None
            self._tls_file_stamps = stamp
        return self._tls


def make_ssl_context(files: PrometheusTls) -> ssl.SSLContext:
    """Verifies the chain and the name unless `verify` is false. Without VERIFY_X509_STRICT, which the certificate
    authorities of many clusters do not satisfy (RFC 5280's key usage). Raises OSError, ssl.SSLError."""
    context = ssl.create_default_context(cafile=files.ca_file)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if files.cert_file is not None:
        # An encrypted key would prompt for its password on the terminal.
        context.load_cert_chain(files.cert_file, files.key_file, password=lambda: b"")
    if not files.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _file_names(files: PrometheusTls) -> str:
    named = [str(path) for path in (files.ca_file, files.cert_file, files.key_file) if path is not None]
    return ", ".join(named) or "the system's certificate authorities"


def _file_stamp(path: Path | None) -> object:
    try:
        status = path.stat() if path is not None else None
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)


def _basic_auth_header(auth: BasicAuth, secrets: list[str]) -> str:
    password = _read_secret(auth.password_file)
    packed = b64encode(f"{auth.username}:{password}".encode()).decode()
    secrets += [password, packed]
    return f"Basic {packed}"


def _read_secret(path: Path) -> str:
    """The single line of the file. Raises PollError, without the contents."""
    try:
        with path.open("rb") as file:
            text = file.read(_CREDENTIAL_BYTES_MAX + 1).decode().strip()
    except OSError as error:
        raise PollError("credentials", f"{path}: {error.strerror or type(error).__name__}") from None
    except UnicodeDecodeError:
        raise PollError("credentials", f"{path}: not UTF-8 text") from None
    if not text or len(text) > _CREDENTIAL_BYTES_MAX or not text.isprintable():
        raise PollError("credentials", f"{path}: it must contain one line of text")
    return text


def _status_error(status: int, message: str) -> PollError:
    detail = f": {message}" if message else ""
    if 300 <= status < 400:
        return PollError("redirect", f"the server returned {status}; redirects are not followed")
    if status in (401, 403, 407):
        return PollError("credentials", f"the server returned {status}{detail}")
    if status in (400, 422):
        return PollError("query", f"the server returned {status}{detail}")
    return PollError("status", f"the server returned {status}{detail}")
