"""TLS of the HTTP server: a certificate from files or a self-signed one, and the CA of client certificates.

Certificates are renewed while the process runs (cert-manager replaces the files), so the files are checked periodically.
Each change makes a new context, which new connections use. While certificate and key do not match, as during a renewal,
the old context stays. A self-signed certificate is made anew before it expires.
"""

import logging
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

log = logging.getLogger(__name__)

RELOAD_INTERVAL_S = 10.0
SELF_SIGNED_LIFETIME = timedelta(days=365)
"""As of kube-scheduler's."""
SELF_SIGNED_RENEWAL_AGE = timedelta(days=292)
"""After four fifths of the lifetime, so that months remain in which a failed renewal is repeated."""


class BadCertificate(Exception):
    """Unusable certificate files. The message is one line."""


@dataclass(frozen=True, slots=True)
class ServerTlsFiles:
    """PEM files. `certificate` and `key` None: a self-signed pair, in memory. `client_ca` is the CA of clients'
    certificates, in place of the cluster's."""

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None


class ServerTls:
    """`context` is the one for the next connection. Raises BadCertificate if the files are unusable at the start. `host`
    is named in a self-signed certificate, whose age is by the clock `now`."""

    def __init__(
        self,
        files: ServerTlsFiles,
        *,
        host: str = "localhost",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._files = files
        self._host, self._now = host, now
        self._self_signed_at = now()
        self._cluster_client_ca = ""
        self._self_signed_pem = b"" if files.certificate is not None else make_self_signed_pem(host, now())
        self._last_stamps = self._file_stamps()
        self.context = self._make_context()

    @property
    def has_client_ca_file(self) -> bool:
        return self._files.client_ca is not None

    def reload_if_changed(self) -> None:
        """Reload the files if they changed; make a new self-signed certificate if it is time."""
        if self._files.certificate is None:
            self._renew_self_signed_if_old()
        stamps = self._file_stamps()
        if stamps == self._last_stamps:
            return
        try:
            self.context = self._make_context()
        except BadCertificate as error:
            log.warning(
                "cannot load the new certificate; keeping the current one", extra={"error": str(error)}
            )
        else:
            self._last_stamps = stamps
            log.info("reloaded the certificate", extra={"file": str(self._files.certificate)})

    def _renew_self_signed_if_old(self) -> None:
        now = self._now()
        # A clock that was set back makes a certificate from the future, which clients refuse too.
        if abs(now - self._self_signed_at) < SELF_SIGNED_RENEWAL_AGE:
            return
        self._self_signed_pem, self._self_signed_at = make_self_signed_pem(self._host, now), now
        self.context = self._make_context()
        log.info("renewed the self-signed certificate")

    def use_cluster_client_ca(self, pem: str) -> None:
        """The cluster's CA of client certificates; no effect with a `client_ca` file."""
        if self.has_client_ca_file or pem == self._cluster_client_ca:
            return
        before, self._cluster_client_ca = self._cluster_client_ca, pem
        try:
            self.context = self._make_context()
        except BadCertificate as error:
            self._cluster_client_ca = before
            log.warning("cannot use the cluster's CA of client certificates", extra={"error": str(error)})

    def _make_context(self) -> ssl.SSLContext:
        context, files = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._files
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if files.certificate is None or files.key is None:
            with _as_file(self._self_signed_pem) as path:
                context.load_cert_chain(path)
        else:
            try:
                context.load_cert_chain(files.certificate, files.key)
            except (OSError, ssl.SSLError) as error:
                raise BadCertificate(
                    f"{files.certificate} and {files.key}: {_error_message(error)}"
                ) from error
        if files.client_ca is not None or self._cluster_client_ca:
            try:
                context.load_verify_locations(
                    files.client_ca, cadata=None if files.client_ca else self._cluster_client_ca
                )
            except (OSError, ssl.SSLError) as error:
                source = files.client_ca or "the cluster's CA"
                raise BadCertificate(f"{source}: {_error_message(error)}") from error
            context.verify_mode = ssl.CERT_OPTIONAL  # probes have none, and tokens need none
        return context

    def _file_stamps(self) -> tuple[tuple[int, int] | None, ...]:
        files = (self._files.certificate, self._files.key, self._files.client_ca)
        return tuple(None if file is None else _file_stamp(file) for file in files)


def make_self_signed_pem(host: str, now: datetime) -> bytes:
    """A key and a certificate for `host`, the machine's name and loopback, as PEM. Valid from an hour before `now`."""
    # Imported here: it takes 60 ms, and most clusters give a certificate.
    import ipaddress
    import socket

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    machine = socket.gethostname()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{machine}"[:64])])
    names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    names += [x509.DNSName(name) for name in dict.fromkeys((machine, "localhost")) if name.isascii()]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        names += [x509.DNSName(host)] if host not in (machine, "localhost") else []
    else:
        names += [x509.IPAddress(address)] if host not in ("127.0.0.1", "0.0.0.0", "::") else []
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + SELF_SIGNED_LIFETIME)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + certificate.public_bytes(serialization.Encoding.PEM)


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path with this content, for `ssl`, which loads keys only from files: in memory on Linux, where a pod's file system
    may be read-only."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("policysched-serving")
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "serving.pem"
        path.touch(mode=0o600)
        path.write_bytes(content)
        yield str(path)


def _file_stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _error_message(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
