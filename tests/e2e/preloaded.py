"""policysched as a process that is forked from one in which its modules are imported already.

Importing them takes a second of CPU, and the tests start the program hundreds of times. The fork server of the standard
library imports them once for each test worker, and the workers that check policies are forked, too
(`forked_worker.py`). `tests/cli` starts the installed command.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.e2e.forked_worker import fork_workers

PRELOADED_MODULES = (
    "kubernetes.aio.client",  # this one and the next are imported when a connection is made
    "kubernetes.aio.config",
    "policysched.cli.run",
    "policysched.cli.extender",
    "policysched.cli.sandbox",
    "policysched.runtime.program",
    "policysched.extender.program",
    "tests.e2e.parser_tables",
    "tests.e2e.preloaded",
    "uvloop",
)


def no_change() -> None:
    """The program as it is."""


def without_settings() -> dict[str, str]:
    """The environment without settings of policysched."""
    return {name: value for name, value in os.environ.items() if not name.startswith("POLICYSCHED_")}


def start_interpreter(arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """`policysched ARGUMENTS` as it is started outside of tests, which shares no memory with them."""
    with log.open("a") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "policysched", *arguments],
            env=without_settings(),
            stdout=file,
            stderr=file,
        )


class PreloadedProcess:
    """`policysched ARGUMENTS`, with its output in the file `log` and without the environment's settings. `plant` is
    called first; it can be pickled. The methods are those of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], log: Path, plant: Callable[[], None] = no_change) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED_MODULES))
        environment = without_settings()
        log.touch()
        # A daemon is not waited for when the tests end.
        self._process = context.Process(
            target=_run, args=(list(arguments), str(log), environment, plant), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it may end now, and the fork server has waited for it
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("policysched", timeout or 0.0)
        return self._process.exitcode


def _run(arguments: list[str], log: str, environment: dict[str, str], plant: Callable[[], None]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with Path(log).open("a") as file:
        for output in (1, 2):
            os.dup2(file.fileno(), output)
    # As in a terminal: `nohup` leaves it ignored, and the fork server inherits that.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.argv = ["policysched", *arguments]
    fork_workers()
    plant()
    from policysched.cli import main

    main()
