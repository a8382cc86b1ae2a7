"""TLS of the HTTP server: a certificate that is reloaded when its files change, and optionally a client CA.

Certificates are renewed while the process runs (cert-manager replaces the files), so the files are checked periodically.
New connections use the new certificate. While certificate and key do not match, as during a renewal, the old pair stays.
"""

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

RELOAD_INTERVAL_S = 10.0


class BadCertificate(Exception):
    """Unusable certificate files. The message is one line."""


@dataclass(frozen=True, slots=True)
class ServerTlsFiles:
    """PEM files. `client_ca`: verify certificates that clients present against this CA."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class ServerTls:
    """`context` is the server's. Raises BadCertificate if the files are unusable at the start."""

    def __init__(self, files: ServerTlsFiles) -> None:
        self._files = files
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._last_stamps = self._file_stamps()
        self._load(self.context)
        if files.client_ca is not None:
            self.context.verify_mode = ssl.CERT_OPTIONAL  # probes have none; routes require one

    async def watch_files(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(RELOAD_INTERVAL_S)
            self.reload_if_changed()

    def reload_if_changed(self) -> None:
        """Reload the files if they changed."""
        stamp = self._file_stamps()
        if stamp == self._last_stamps:
            return
        try:
            # Load a scratch context first: a mismatched key would leave the live context without a usable pair.
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
