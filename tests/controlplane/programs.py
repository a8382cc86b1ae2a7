"""Find the programs of a control plane.

In this order: the folder `KUBEBUILDER_ASSETS` (as with envtest), a binary built from `src/` in the
user's cache, and a new build if `go` is on the PATH. envtest's folder has etcd and kube-apiserver
and seldom the other two, so each program is looked up separately. A program that is not available
is `Missing`, with the reason for a skipped test.
"""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tests.controlplane.build import BuildFailed, cached_binary, kubernetes_version, make_binary

PROGRAM_NAMES = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")


@dataclass(frozen=True, slots=True)
class Missing:
    """A program that is not available. `reason` is a sentence without a full stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class Program:
    """`argv` starts the program; its own flags follow. `kubernetes_version` is like `v1.36.3`, and
    None for etcd.
    """

    argv: tuple[str, ...]
    kubernetes_version: str | None


@dataclass(frozen=True, slots=True)
class Programs:
    """The result for each of `PROGRAM_NAMES`."""

    found: Mapping[str, Program | Missing]

    def missing(self, *names: str) -> str | None:
        """Why the named programs are not all available, or None."""
        reasons = {f.reason for name in names if isinstance(f := self.found[name], Missing)}
        return "; ".join(sorted(reasons)) or None

    def __getitem__(self, name: str) -> Program:
        program = self.found[name]
        if isinstance(program, Missing):
            raise LookupError(f"{name}: {program.reason}")
        return program


def find_programs(environ: Mapping[str, str] = os.environ) -> Programs:
    """Find all four programs, building them if necessary (minutes, once per version of the sources
    and of Go).
    """
    assets = _assets(environ)
    lacking = [name for name in PROGRAM_NAMES if name not in assets]
    if not lacking:
        return Programs(MappingProxyType(dict(assets)))
    programs: dict[str, Program | Missing] = dict(assets)
    binary = _our_binary(environ)
    for name in lacking:
        if isinstance(binary, Missing):
            programs[name] = binary
        else:
            version = None if name == "etcd" else kubernetes_version(environ)
            programs[name] = Program((str(binary), name), version)
    return Programs(MappingProxyType(programs))


def _assets(environ: Mapping[str, str]) -> dict[str, Program]:
    folder = environ.get("KUBEBUILDER_ASSETS")
    if not folder:
        return {}
    programs = {}
    for name in PROGRAM_NAMES:
        path = Path(folder) / name
        if os.access(path, os.X_OK):
            programs[name] = Program((str(path),), None if name == "etcd" else _version_of(path))
    return programs


def _version_of(path: Path) -> str:
    output = subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout
    match = re.search(r"v\d+\.\d+\.\d+\S*", output)
    assert match, f"{path} --version said {output!r}"
    return match.group()


def _our_binary(environ: Mapping[str, str]) -> Path | Missing:
    binary = cached_binary(environ)
    if binary is not None:
        return binary
    try:
        return make_binary(environ)
    except BuildFailed as failure:
        return Missing(str(failure))
