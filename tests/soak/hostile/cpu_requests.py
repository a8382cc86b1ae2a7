"""Processor time by the `requests` of the pods that the processes are in a cluster, as the kubelet sets it: shares of a cgroup.

Without them each thread gets as much as another one, so that an API server with ten busy threads takes ten times the
processor time of a scheduler, whatever both request.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import yaml

ROOT = Path(__file__).parents[3]
CPU_CONTROLLER = Path("/sys/fs/cgroup/cpu")
"""Of cgroup v1. With cgroup v2, or without the right to make groups, the threads share the processors equally."""
APISERVER_MILLICPU, ETCD_MILLICPU = 250, 100
"""Of the static pods that kubeadm writes."""
CLIENTS_MILLICPU, ATTACKER_MILLICPU = 1_000, 2
"""In a cluster they are on other machines: the clock of the friendly tenant must not wait, and the attacker takes what nobody
else wants. The scheduling policy of its threads counts only inside of its group."""
_SHARES_PER_CPU = 1_024


class CpuRequests:
    """`folder`: of the groups; None: there are none. Processes that a process starts are in its group."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @classmethod
    @contextmanager
    def made(cls) -> Iterator[Self]:
        """This process is among the clients, and back in its group at the end."""
        if not os.access(CPU_CONTROLLER / "cgroup.procs", os.W_OK):
            yield cls(None)
            return
        before = _group_of_this_process()
        folder = CPU_CONTROLLER / f"soak-{os.getpid()}"
        folder.mkdir()
        (folder / "cpu.shares").write_text(str(100 * _SHARES_PER_CPU))
        requests = cls(folder)
        requests.place("clients", os.getpid(), CLIENTS_MILLICPU)
        try:
            yield requests
        finally:
            _move(before, os.getpid())
            for group in [*folder.iterdir(), folder]:
                if group.is_dir():
                    for pid in (group / "cgroup.procs").read_text().split():
                        _move(before, int(pid))
                    group.rmdir()

    def __bool__(self) -> bool:
        return self._folder is not None

    def place(self, name: str, pid: int, millicpu: int) -> None:
        """The process with its threads; those that it starts follow it."""
        if self._folder is None:
            return
        group = self._folder / name
        group.mkdir(exist_ok=True)
        (group / "cpu.shares").write_text(str(millicpu * _SHARES_PER_CPU // 1000))
        _move(group, pid)


def deployed_millicpu() -> int:
    """What deploy/deployment.yaml requests."""
    deployment = yaml.safe_load((ROOT / "deploy" / "deployment.yaml").read_text())
    text: str = deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"]
    assert text.endswith("m")
    return int(text[:-1])


def _group_of_this_process() -> Path:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    path = next(line.split(":", 2)[2] for line in lines if line.split(":")[1] == "cpu")
    return CPU_CONTROLLER / path.lstrip("/")


def _move(group: Path, pid: int) -> None:
    (group / "cgroup.procs").write_text(str(pid))
