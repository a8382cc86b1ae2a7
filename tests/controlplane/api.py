"""A blocking client for tests: one JSON request at a time to the API server, with TLS verified.

It shares no code with `policysched.kube`, so what a test creates and reads through it does not
depend on the code under test.
"""

import http.client
import json
import select
import ssl
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.controlplane.certificates import KeyPair

Json = dict[str, Any]
TIMEOUT_S = 120.0
"""Much longer than any response takes on a busy machine; only a hanging server exceeds it."""
MERGE_PATCH = "application/merge-patch+json"


class ApiError(Exception):
    """The API server answered with a status above 299."""

    def __init__(self, method: str, path: str, status: int, body: Json) -> None:
        super().__init__(f"{method} {path}: {status} {body.get('message', body)}")
        self.status = status
        self.body = body


class Api:
    """Requests as one user. Not thread-safe."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection

    @classmethod
    def verified(
        cls, host: str, port: int, authority: Path, client: KeyPair | None, *, timeout_s: float = TIMEOUT_S
    ) -> Self:
        """Over TLS, as the user of the certificate `client`, or anonymously."""
        context = ssl.create_default_context(cafile=str(authority))
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        return cls(http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context))

    @classmethod
    def plain(cls, host: str, port: int) -> Self:
        """Without TLS, as etcd listens here."""
        return cls(http.client.HTTPConnection(host, port, timeout=TIMEOUT_S))

    def get(self, path: str, **params: str) -> Json:
        return self.request("GET", path, params=params)

    def post(self, path: str, body: Json, **params: str) -> Json:
        return self.request("POST", path, body, params=params)

    def put(self, path: str, body: Json, **params: str) -> Json:
        return self.request("PUT", path, body, params=params)

    def patch(self, path: str, body: Json, *, content_type: str = MERGE_PATCH, **params: str) -> Json:
        return self.request("PATCH", path, body, content_type=content_type, params=params)

    def delete(self, path: str, body: Json | None = None, **params: str) -> Json:
        return self.request("DELETE", path, body, params=params)

    def items(self, path: str, **params: str) -> list[Json]:
        """All items of a list."""
        items: list[Json] = self.get(path, **params)["items"]
        return items

    def changes(self, path: str, since_version: str) -> list[Json]:
        """The events of a watch, from a resource version until now."""
        params = {"watch": "1", "resourceVersion": since_version, "timeoutSeconds": "1"}
        _, raw = self._exchange("GET", path, None, "application/json", params)
        return [json.loads(line) for line in raw.splitlines()]

    def request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Json:
        """One response, which is JSON or plain text (then under `text`). Raises `ApiError`, and
        `OSError` if there is no response.
        """
        status, raw = self._exchange(method, path, body, content_type, params or {})
        try:
            answer: Json = json.loads(raw)
        except json.JSONDecodeError:
            answer = {"text": raw.decode(errors="replace")}
        if status > 299:
            raise ApiError(method, path, status, answer)
        return answer

    def close(self) -> None:
        self._connection.close()

    def _exchange(
        self, method: str, path: str, body: Json | None, content_type: str, params: Mapping[str, str]
    ) -> tuple[int, bytes]:
        target = f"{path}?{urllib.parse.urlencode(params)}" if params else path
        headers = {"Content-Type": content_type} if body is not None else {}
        payload = json.dumps(body) if body is not None else None
        self._reconnect_if_closed()
        try:
            self._connection.request(method, target, payload, headers)
            response = self._connection.getresponse()
            return response.status, response.read()
        except BaseException:
            self._connection.close()  # a response may still be pending on it
            raise

    def _reconnect_if_closed(self) -> None:
        """A kept connection that is readable while no request is pending has been closed by the
        server.
        """
        sock = self._connection.sock
        if sock is not None and select.select([sock], [], [], 0)[0]:
            self._connection.close()
