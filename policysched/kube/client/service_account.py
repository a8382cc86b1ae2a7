"""The connection of a pod: the API server's address from the environment, token and CA from the mounted files.

The client library does the same, but its import takes a quarter of the start's CPU time and 23 MiB.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from policysched.files import UnreadableFile, read_text

log = logging.getLogger(__name__)

FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_RELOAD_INTERVAL_S = 60.0
"""The kubelet replaces the file long before the token expires."""
_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


def in_cluster(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs in a pod with a service account."""
    return bool(environ.get(_HOST) and environ.get(_PORT))


class ServiceAccount:
    """Raises `UnreadableFile` if a file is missing or empty. Later, while the token cannot be read, the last one is used."""

    cert_file: str | None = None
    key_file: str | None = None
    verify_ssl = True
    proxy: str | None = None
    tls_server_name: str | None = None

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        folder: Path = FOLDER,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        host = environ[_HOST]
        self.host = f"https://{f'[{host}]' if ':' in host else host}:{environ[_PORT]}"
        self.ssl_ca_cert: str | None = str(folder / "ca.crt")
        _content(folder / "ca.crt")
        self._token_file, self._monotonic_s = folder / "token", monotonic_s
        self._token, self._read_s = _content(self._token_file), monotonic_s()

    async def get_api_key_with_prefix(self, identifier: str) -> str | None:
        del identifier
        now_s = self._monotonic_s()
        if now_s - self._read_s > TOKEN_RELOAD_INTERVAL_S:
            self._read_s = now_s
            try:
                self._token = _content(self._token_file)
            except UnreadableFile as error:
                log.warning("cannot read the token; using the last one", extra={"error": str(error)})
        return f"Bearer {self._token}"


def _content(path: Path) -> str:
    try:
        text = read_text(path).strip()
    except UnreadableFile as error:
        raise UnreadableFile(f"{path}: {error}") from None
    if not text:
        raise UnreadableFile(f"{path}: the file is empty")
    return text
