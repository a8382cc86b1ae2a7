"""The connection to the HTTP port of a running scheduler.

    kubeconfig ──► API server: which pod leads? ──► port-forward to it ──► TLS ──► GET /explain, with the user's token

The API server authenticates the user and says which pod it forwards to, so the scheduler's self-signed certificate is not
verified inside the tunnel. The scheduler's port then asks for the user's token or client certificate once more (ADR 46):
the API server's own proxy would remove the token. With a URL there is no tunnel: plain HTTP to a loopback address, or
HTTPS that is verified.
"""

import http.client
import random
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import orjson

from policysched import __version__
from policysched.files import memory_folder
from policysched.http_errors import describe_http_error
from policysched.serve.health import STANDBY_HEADER

PORT_NAMES = ("https", "http")
PORT_DEFAULT = 10259
TIMEOUT_S = 30.0
_PODS_LABEL = "app.kubernetes.io/name=policysched"


class LiveFailed(Exception):
    """The scheduler cannot be reached. The message is one line and says what is missing."""


class _IsStandby(LiveFailed):
    """Another replica leads."""


@dataclass(frozen=True, slots=True)
class LiveTarget:
    """Which scheduler: a URL, or the pods of a namespace of the kubeconfig's cluster."""

    url: str | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str = "policysched"


@dataclass(frozen=True, slots=True)
class _Credentials:
    authorization: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


def get_page(target: LiveTarget, path: str, query: Mapping[str, str]) -> dict[str, Any]:
    """The JSON of a page. Raises LiveFailed."""
    url = f"{path}?{urlencode(query)}" if query else path
    try:
        if target.url is not None:
            return _get_by_url(target.url, url)
        return _get_by_port_forward(target, url)
    except (OSError, http.client.HTTPException) as error:
        raise LiveFailed(f"{_describe(target)}: {describe_http_error(error)}") from error


def _describe(target: LiveTarget) -> str:
    return target.url or f"the scheduler in namespace {target.namespace}"


# ── a URL ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _get_by_url(base: str, url: str) -> dict[str, Any]:
    connection = _url_connection(base)
    try:
        return _read(connection, url, _Credentials())
    finally:
        connection.close()


def _url_connection(base: str) -> http.client.HTTPConnection:
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LiveFailed(f"{base}: not a URL; write http://127.0.0.1:PORT")
    is_loopback = parts.hostname in ("localhost", "::1") or parts.hostname.startswith("127.")
    if parts.scheme == "http" and not is_loopback:
        raise LiveFailed(f"{base}: plain HTTP is for loopback addresses")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname, parts.port, timeout=TIMEOUT_S)


# ── port-forward ───────────────────────────────────────────────────────────────────────────────────────────────────


def _get_by_port_forward(target: LiveTarget, url: str) -> dict[str, Any]:
    """From the leader; where that is not known, from the first pod that does not say that another one leads."""
    with _api_client(target) as (core, coordination, credentials):
        pods = _scheduler_pods(core, target.namespace)
        holder = _lease_holder(coordination, target.namespace)
        pods.sort(key=lambda pod: not (holder or "").startswith(f"{pod.metadata.name}_"))
        problem = _no_pod(target.namespace)
        for pod in pods:
            try:
                return _get_from_pod(core, pod, url, credentials)
            except _IsStandby as error:
                problem = error
        raise problem


def _no_pod(namespace: str) -> LiveFailed:
    return LiveFailed(
        f"no pod with the label {_PODS_LABEL} runs in namespace {namespace}; "
        "name another with --scheduler-namespace, or the address of the scheduler with --url"
    )


@contextmanager
def _api_client(target: LiveTarget) -> Iterator[tuple[Any, Any, _Credentials]]:
    """The core and coordination APIs. The client library handles contexts and exec plugins; its import takes a second."""
    from kubernetes import client, config

    configured = client.Configuration()
    try:
        config.load_kube_config(
            config_file=None if target.kubeconfig is None else str(target.kubeconfig),
            context=target.context,
            client_configuration=configured,
            persist_config=False,
            temp_file_path=memory_folder(),
        )
    except (config.ConfigException, OSError) as error:
        raise LiveFailed(f"kubeconfig: {' '.join(str(error).split())}") from None
    api = client.ApiClient(configured)
    api.user_agent = f"policysched/{__version__}"
    token = configured.get_api_key_with_prefix("BearerToken")
    credentials = _Credentials(token, configured.cert_file, configured.key_file)
    try:
        yield client.CoreV1Api(api), client.CoordinationV1Api(api), credentials
    except client.ApiException as error:
        raise LiveFailed(_describe_refusal(error)) from None
    except Exception as error:
        if type(error).__module__.startswith("urllib3"):
            reason = getattr(error, "reason", error)
            raise LiveFailed(f"{configured.host}: {' '.join(str(reason).split())}") from None
        raise
    finally:
        api.close()


def _describe_refusal(error: Any) -> str:
    """The API server's message: for a missing permission it names the user, the verb and the resource."""
    try:
        message = orjson.loads(error.body or b"{}").get("message")
    except (orjson.JSONDecodeError, AttributeError):
        message = None
    return f"the API server answered {error.status or 'nothing'}: {message or error.reason}"


def _scheduler_pods(core: Any, namespace: str) -> list[Any]:
    pods = core.list_namespaced_pod(namespace, label_selector=_PODS_LABEL, _request_timeout=TIMEOUT_S).items
    return [pod for pod in pods if pod.status.phase == "Running" and not pod.metadata.deletion_timestamp]


def _lease_holder(coordination: Any, namespace: str) -> str | None:
    """None also without the permission to read it: then the pods are queried one after another."""
    from kubernetes.client import ApiException

    try:
        lease = coordination.read_namespaced_lease("policysched", namespace, _request_timeout=TIMEOUT_S)
    except ApiException:
        return None
    holder = lease.spec.holder_identity
    return None if holder is None else str(holder)


def _port_of(pod: Any) -> int:
    ports = [port for container in pod.spec.containers for port in container.ports or ()]
    named = [port.container_port for port in ports if port.name in PORT_NAMES]
    return named[0] if named else PORT_DEFAULT


@contextmanager
def _pod_connection(
    core: Any, pod: Any, credentials: _Credentials
) -> Iterator[tuple[http.client.HTTPSConnection, Callable[[], str | None]]]:
    """TLS to the pod's port, and why the tunnel ended. Raises OSError."""
    from kubernetes.stream import portforward

    port = _port_of(pod)
    forward = portforward(
        core.connect_get_namespaced_pod_portforward,
        pod.metadata.name,
        pod.metadata.namespace,
        ports=str(port),
    )
    connection = http.client.HTTPSConnection("localhost", port)
    try:
        tunnel = forward.socket(port)
        tunnel.settimeout(TIMEOUT_S)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # see the module's docstring
        if credentials.cert_file:
            context.load_cert_chain(credentials.cert_file, credentials.key_file)
        try:
            connection.sock = context.wrap_socket(tunnel, server_hostname="localhost")
        except OSError as error:
            reason = forward.error(port) or describe_http_error(error)
            raise LiveFailed(f"{_place(pod)}: {reason}") from error
        yield connection, lambda: forward.error(port)
    finally:
        connection.close()
        forward.close()


def _place(pod: Any) -> str:
    return f"pod {pod.metadata.namespace}/{pod.metadata.name}, port {_port_of(pod)}"


def _get_from_pod(core: Any, pod: Any, url: str, credentials: _Credentials) -> dict[str, Any]:
    with _pod_connection(core, pod, credentials) as (connection, tunnel_error):
        try:
            return _read(connection, url, credentials, of_leader=True)
        except (OSError, http.client.HTTPException) as error:
            raise LiveFailed(f"{_place(pod)}: {tunnel_error() or describe_http_error(error)}") from error


# ── a connection that is kept ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ForwardedAnswer:
    """What the scheduler answered, to be passed on."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class LiveChannel:
    """One connection to the scheduler that leads, for many requests of any threads. A request that fails on a connection
    that was used before is sent once more, on a new one."""

    def __init__(self, target: LiveTarget) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._connection: http.client.HTTPConnection | None = None
        self._credentials = _Credentials()

    def ask(self, url: str, headers: Mapping[str, str], body: bytes | None = None) -> ForwardedAnswer:
        """GET, or POST with a `body`. Raises LiveFailed."""
        with self._lock:
            while True:
                is_new = self._connection is None
                try:
                    return self._ask(self._connection or self._open(), url, headers, body)
                except (OSError, http.client.HTTPException) as error:
                    self._close()
                    if is_new:
                        raise LiveFailed(
                            f"{_describe(self._target)}: {describe_http_error(error)}"
                        ) from error

    def close(self) -> None:
        with self._lock:
            self._close()

    def _ask(
        self, connection: http.client.HTTPConnection, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> ForwardedAnswer:
        own_headers = (
            {"Authorization": self._credentials.authorization} if self._credentials.authorization else {}
        )
        method, agent = "GET" if body is None else "POST", f"policysched/{__version__}"
        connection.request(method, url, body, {**headers, **own_headers, "User-Agent": agent})
        answer = connection.getresponse()
        body = answer.read()
        if STANDBY_HEADER in answer.headers:
            self._close()  # the next request looks for the leader again
        return ForwardedAnswer(answer.status, dict(answer.getheaders()), body)

    def _open(self) -> http.client.HTTPConnection:
        if self._target.url is not None:
            self._connection = _url_connection(self._target.url)
            self._stack.callback(self._connection.close)
            return self._connection
        with _api_client(self._target) as (core, coordination, credentials):
            pods = _scheduler_pods(core, self._target.namespace)
            holder = _lease_holder(coordination, self._target.namespace)
            if not pods:
                raise _no_pod(self._target.namespace)
            pod = next(
                (pod for pod in pods if (holder or "").startswith(f"{pod.metadata.name}_")),
                random.choice(pods),
            )
            self._credentials = credentials
            self._connection, _ = self._stack.enter_context(_pod_connection(core, pod, credentials))
        return self._connection

    def _close(self) -> None:
        self._stack.close()
        self._connection = None


def _read(
    connection: http.client.HTTPConnection, url: str, credentials: _Credentials, *, of_leader: bool = False
) -> dict[str, Any]:
    """Raises _IsStandby for an answer of another replica than the leader, if it is to be `of_leader`."""
    headers = {"User-Agent": f"policysched/{__version__}", "Accept": "application/json"}
    if credentials.authorization:
        headers["Authorization"] = credentials.authorization
    connection.request("GET", url, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    is_standby = of_leader and STANDBY_HEADER in answer.headers
    if answer.status != 200:
        text = " ".join(body.decode(errors="replace").split())[:500]
        raise (_IsStandby if is_standby else LiveFailed)(
            _explain_status(answer.status, text, url.partition("?")[0])
        )
    try:
        page = orjson.loads(body)
    except orjson.JSONDecodeError:  # a login page, another program
        page = None
    if not isinstance(page, dict):
        raise LiveFailed(
            "the response has an unknown form; the scheduler may run another version of policysched, or another program answers"
        )
    if is_standby:
        raise _IsStandby(str(page.get("note")))
    return page


def _explain_status(status: int, text: str, path: str) -> str:
    match status:
        case 401:
            return f"the scheduler did not accept your credentials: {text}"
        case 403:
            return f"you may not get {path} of the scheduler: {text}. A ClusterRole with nonResourceURLs: [{path}] allows it"
        case 404 if text.startswith("404"):
            return f"the scheduler does not serve {path}; it runs an earlier version of policysched, or `policysched extender`"
        case 404:
            return text
        case _:
            return f"the scheduler answered {status}: {text}"
