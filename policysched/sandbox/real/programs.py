"""etcd and kube-apiserver: where they are, and how they run for a sandbox.

Everything listens on 127.0.0.1 and keeps its files in one temporary folder. The API server makes its own
serving certificate; the one user is an administrator with a bearer token.
"""

import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

HOST = "127.0.0.1"
_ASSETS = "KUBEBUILDER_ASSETS"
_PARENT_DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG` of prctl(2)."""

_OMITTED_ADMISSION = "ServiceAccount,TaintNodesByCondition,ResourceQuota"
"""As in the sandbox without a real server: pods get no token, nothing would remove the taint of a new node, and nothing
counts what a quota limits."""


class ProgramFailed(Exception):
    """A program is missing or has ended. The message is one line."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The paths of the programs."""

    etcd: Path
    apiserver: Path


def find_programs(environ: Mapping[str, str] = os.environ) -> Programs:
    """Those of the folder `KUBEBUILDER_ASSETS`, where setup-envtest puts them, or else of PATH. Raises `ProgramFailed`."""
    assets = environ.get(_ASSETS, "")
    path = os.pathsep.join(folder for folder in (assets, environ.get("PATH", "")) if folder)
    located = {name: shutil.which(name, path=path) for name in ("etcd", "kube-apiserver")}
    missing = [name for name, program in located.items() if program is None]
    if missing:
        where = f"the folder {assets} ({_ASSETS}) or on PATH" if assets else f"PATH, and {_ASSETS} is not set"
        raise ProgramFailed(
            f"--real: {' and '.join(missing)} not found {'in' if assets else 'on'} {where}; "
            "`setup-envtest use -p path` installs both and prints the folder"
        )
    return Programs(Path(str(located["etcd"])), Path(str(located["kube-apiserver"])))


class ControlPlane:
    """The two processes. `token` is the administrator's; `folder` holds all files, with a log for each program."""

    def __init__(self, programs: Programs, folder: Path, *, port: int = 0) -> None:
        self._programs = programs
        self._folder = folder
        self.port = port
        self.token = secrets.token_hex(16)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"

    @property
    def certificate_path(self) -> Path:
        """Written by the API server at its start."""
        return self._folder / "apiserver.crt"

    async def has_certificate(self) -> bool:
        return self.certificate_path.exists() and self.certificate_path.stat().st_size > 0

    def start(self) -> None:
        """Start both; `raise_if_ended` and the API server's `/readyz` say what becomes of them."""
        etcd, peer, free = _free_ports(3)
        self.port = self.port or free
        self._start(
            "etcd",
            self._programs.etcd,
            [
                f"--data-dir={self._folder / 'etcd'}",
                f"--listen-client-urls=http://{HOST}:{etcd}",
                f"--advertise-client-urls=http://{HOST}:{etcd}",
                f"--listen-peer-urls=http://{HOST}:{peer}",
                f"--initial-advertise-peer-urls=http://{HOST}:{peer}",
                f"--initial-cluster=default=http://{HOST}:{peer}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
        )
        key, tokens = self._folder / "service-accounts.key", self._folder / "tokens.csv"
        _write_private(key, _signing_key())
        _write_private(tokens, f'{self.token},admin,admin,"system:masters"\n'.encode())
        self._start(
            "kube-apiserver",
            self._programs.apiserver,
            [
                f"--etcd-servers=http://{HOST}:{etcd}",
                f"--bind-address={HOST}",
                f"--secure-port={self.port}",
                f"--advertise-address={HOST}",
                f"--cert-dir={self._folder}",
                "--endpoint-reconciler-type=none",  # a Service cannot have a loopback address as its endpoint
                "--service-cluster-ip-range=10.0.0.0/24",
                f"--token-auth-file={tokens}",
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}",
                "--authorization-mode=Node,RBAC",
                f"--disable-admission-plugins={_OMITTED_ADMISSION}",
            ],
        )

    def raise_if_ended(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                *_, last_line = ["", *self._log(name).read_text(errors="replace").strip().splitlines()]
                raise ProgramFailed(f"{name} ended with exit code {process.returncode}: {last_line}")

    def stop(self) -> None:
        """Nothing is saved, so both are killed."""
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait()

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _start(self, name: str, program: Path, arguments: Sequence[str]) -> None:
        with self._log(name).open("wb") as log:
            # A session of its own: Ctrl-C in a terminal stops the sandbox, which then stops the programs.
            self._processes[name] = subprocess.Popen(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )


def _end_with_parent() -> None:
    """So that a sandbox that is killed leaves no program."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _signing_key() -> bytes:
    """For the tokens of service accounts."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _write_private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
