"""Find Prometheus and node exporter, and check what else the tests need on this machine."""

import os
import shutil
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs. `unshare` is the beginning of a command that runs in its own network namespace."""

    prometheus: str
    node_exporter: str
    unshare: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """Why the tests cannot run here."""

    reason: str


def find_programs(path: str | None = None) -> Programs | Missing:
    prometheus = shutil.which("prometheus", path=path)
    # Upstream's name, and Debian's.
    exporter = shutil.which("prometheus-node-exporter", path=path) or shutil.which("node_exporter", path=path)
    absent = [
        package
        for package, program in (("prometheus", prometheus), ("prometheus-node-exporter", exporter))
        if program is None
    ]
    if absent or prometheus is None or exporter is None:
        return Missing(
            f"no real Prometheus: {' and '.join(absent)} not on the PATH (apt-get install {' '.join(absent)})"
        )
    unshare = _unshare()
    if unshare is None:
        return Missing(
            "no real Prometheus: `unshare -n` does not work here, so hosts cannot have networks of their own"
        )
    return Programs(prometheus, exporter, unshare)


def _unshare() -> tuple[str, ...] | None:
    program = shutil.which("unshare")
    if program is None:
        return None
    command = (program, "-n") if os.geteuid() == 0 else (program, "-r", "-n")
    works = subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if works else None
