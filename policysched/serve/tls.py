"""TLS for what we serve: a certificate from files, read again when they change, and perhaps an authority for clients.

Certificates are renewed while the process runs (cert-manager writes new files), so the files are looked at again and
again; connections that come later see the new certificate. Files that do not fit together, as in the middle of a
renewal, leave the old one in place.
"""

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

RELOAD_INTERVAL_S = 10.0


class BadCertificate(Exception):
    """Files that make no certificate: one line that says which and why."""


@dataclass(frozen=True, slots=True)
class ServerTlsFiles:
    """PEM files. `client_ca`: certificates of clients are verified by this authority where they show one."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class ServerTls:
    """`context` is what the server listens with. Raises BadCertificate where the files cannot be used at the start."""

    def __init__(self, files: ServerTlsFiles) -> None:
        self._files = files
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._last_stamps = self._file_stamps()
        self._load(self.context)
        if files.client_ca is not None:
            self.context.verify_mode = (
                ssl.CERT_OPTIONAL
            )  # probes have none; who has to show one, the routes say

    async def watch_files(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(RELOAD_INTERVAL_S)
            self.reload_if_changed()

    def reload_if_changed(self) -> None:
        """Take the files over if they changed."""
        stamp = self._file_stamps()
        if stamp == self._last_stamps:
            return
        try:
            # Tried apart first: a key that does not fit leaves a context with neither the old pair nor the new one.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except BadCertificate as error:
            log.warning("cannot load the new certificate; still using the old one", extra={"why": str(error)})
        else:
            self._last_stamps = stamp
            log.info("reloaded the certificate", extra={"file": str(self._files.certificate)})

    def _load(self, context: ssl.SSLContext) -> None:
        files = self._files
        try:
            context.load_cert_chain(files.certificate, files.key)
        except (OSError, ssl.SSLError) as error:
            raise BadCertificate(f"{files.certificate} and {files.key}: {_error_message(error)}") from error
        if files.client_ca is not None:
            try:
                context.load_verify_locations(files.client_ca)
            except (OSError, ssl.SSLError) as error:
                raise BadCertificate(f"{files.client_ca}: {_error_message(error)}") from error

    def _file_stamps(self) -> tuple[tuple[int, int] | None, ...]:
        files = (self._files.certificate, self._files.key, self._files.client_ca)
        return tuple(None if file is None else _file_stamp(file) for file in files)


def _file_stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _error_message(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
