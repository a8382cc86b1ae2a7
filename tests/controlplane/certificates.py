"""Keys and certificates of one control plane, created by the `openssl` program.

A separate authority signs the API server's serving certificate (for 127.0.0.1 and localhost) and a
client certificate for each user; clients verify the server against it. The keys are elliptic-curve
keys, because creating an RSA key takes longer than starting etcd.
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

DAYS = "2"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """The paths of PEM files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority whose files live in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = KeyPair(folder / "ca.crt", folder / "ca.key")
        _openssl(
            *(
                "req",
                "-x509",
                "-new",
                "-nodes",
                "-sha256",
                "-days",
                DAYS,
                "-subj",
                "/CN=policysched-tests-ca",
            ),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *(
                "-addext",
                "basicConstraints=critical,CA:TRUE",
                "-addext",
                "keyUsage=critical,keyCertSign,digitalSignature",
            ),
            *("-keyout", str(self._own.key), "-out", str(self._own.certificate)),
        )

    @property
    def certificate(self) -> Path:
        return self._own.certificate

    def serving(self) -> KeyPair:
        """A serving certificate for loopback."""
        return self._sign(
            "serving",
            "/CN=kube-apiserver",
            "extendedKeyUsage=serverAuth\nsubjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc\n",
        )

    def client(self, user: str, *groups: str) -> KeyPair:
        """A client certificate that authenticates `user`, a member of `groups`."""
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        return self._sign(user.replace(":", "-"), subject, "extendedKeyUsage=clientAuth\n")

    def signing_key(self, name: str) -> Path:
        """A private key for ServiceAccount tokens."""
        path = self._folder / f"{name}.key"
        _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(path))
        return path

    def _sign(self, name: str, subject: str, extensions: str) -> KeyPair:
        pair = KeyPair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        request, settings = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        settings.write_text(
            "basicConstraints=CA:FALSE\nkeyUsage=critical,digitalSignature\n"
            "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n" + extensions
        )
        _openssl(
            *("req", "-new", "-nodes", "-sha256", "-subj", subject),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-keyout", str(pair.key), "-out", str(request)),
        )
        _openssl(
            *("x509", "-req", "-sha256", "-days", DAYS, "-in", str(request), "-out", str(pair.certificate)),
            *("-CA", str(self._own.certificate), "-CAkey", str(self._own.key), "-CAcreateserial"),
            *("-extfile", str(settings)),
        )
        return pair


def openssl_missing() -> str | None:
    """Why certificates cannot be created here, or None."""
    return (
        None
        if shutil.which("openssl")
        else "no control plane: `openssl` is not on the PATH to make its certificates"
    )


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"openssl {' '.join(arguments)}: {done.stderr}"
