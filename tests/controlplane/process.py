"""One program of the control plane as a process: logging to a file, stopping, killing and pausing."""

import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.controlplane.guardian import Guardian
from tests.controlplane.waiting import look_interval_s

STOP_WITHIN_S = 120.0
LOG_TAIL_BYTES = 4_000
OUTSIDE_THE_EPHEMERAL_RANGE = range(20_000, 32_000)
WORKERS_MOST = 16
ENVIRONMENT = {**os.environ, "GOGC": "400"}
"""Go collects garbage less often: 100 MB more for the API server, and a fifth less of its CPU time."""


class NotReady(Exception):
    """A program ended or did not become ready in time; the message has the end of its log."""


class Process:
    """A running program.

    started ──pause──► paused ──resume──► running ──stop or kill──► ended
    """

    def __init__(self, name: str, argv: list[str], log_path: Path, guardian: Guardian) -> None:
        self.name = name
        self.log_path = log_path
        self._guardian = guardian
        with log_path.open("ab") as log:
            # In its own group: Ctrl-C in the tests must not end it before the tests do.
            self._popen = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=ENVIRONMENT,
            )
        guardian.watch(self._popen.pid)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def pause(self) -> None:
        """Freeze it: connections stay open and no request is answered. Returns when all its threads
        are stopped.
        """
        self._popen.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._popen.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self._popen.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Send SIGTERM, and wait."""
        if self.running:
            self._popen.send_signal(signal.SIGCONT)
            self._popen.terminate()
            try:
                self._popen.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._popen.kill()
        self._reap()

    def kill(self) -> None:
        """Send SIGKILL, and wait."""
        if self.running:
            self._popen.kill()
        self._reap()

    def log_tail(self) -> str:
        """The last lines of its log."""
        written = self.log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        return f"--- end of {self.log_path} ---\n{written}"

    def wait_until(self, ready: Callable[[], bool], *, within_s: float) -> None:
        """Poll until `ready`. Raises `NotReady` if the process ends, or if the time is up."""
        start_s = time.monotonic()
        while not ready():
            if not self.running:
                raise NotReady(
                    f"{self.name} ended with exit code {self._popen.returncode}\n{self.log_tail()}"
                )
            waited_s = time.monotonic() - start_s
            if waited_s > within_s:
                raise NotReady(f"{self.name} was not ready within {within_s:g} s\n{self.log_tail()}")
            time.sleep(look_interval_s(waited_s))

    def _reap(self) -> None:
        self._popen.wait()
        self._guardian.forget(self._popen.pid)


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that were free a moment ago, all different.

    A program takes its port only when it has started. Until then the port must not be given to
    another one: each test worker has its own range of ports, and uses them in turn.

    The system's choice (port 0) would be wrong: it comes from the range for outgoing connections,
    so while a server is stopped, a client could get its port, or even connect to itself.
    """
    ports: list[int] = []
    for port in itertools.islice(_ports, 100):
        with contextlib.closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:  # in use
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise NotReady(f"found only {ports} free among 100 ports of 127.0.0.1")


def _ports_of(worker: str) -> Iterator[int]:
    """Iterates forever over the ports of a pytest-xdist worker ("gw3"), or of tests that run in one
    process ("").
    """
    mine = list(
        OUTSIDE_THE_EPHEMERAL_RANGE[int(worker.removeprefix("gw") or 0) % WORKERS_MOST :: WORKERS_MOST]
    )
    random.SystemRandom().shuffle(mine)
    return itertools.cycle(mine)


_ports = _ports_of(os.environ.get("PYTEST_XDIST_WORKER", ""))
