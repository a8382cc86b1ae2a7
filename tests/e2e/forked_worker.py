"""The worker that checks policies, forked from the program under test instead of started.

A worker imports modules for half a second of CPU, and each start of the program starts two: one for its policies and a
spare one. `tests/daemon` and `tests/cli` start workers as users do, with their limit on memory.
"""

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Iterable

from policysched.daemon import check_worker
from policysched.daemon.policy_checker import WorkerChecker

REAP_INTERVAL_S = 0.005
_OWN_DESCRIPTORS, _DESCRIPTORS_MAX = 3, 2**16
_FORKED_EARLY = 2
_forked: list["ForkedWorker"] = []
_start_interpreter = WorkerChecker._start


class ForkedWorker:
    """The part of `ChildProcess` that `WorkerChecker` uses. What the worker writes to stderr is in the
    program's log."""

    def __init__(self) -> None:
        self._socket, workers = socket.socketpair()
        self._code: int | None = None
        try:
            self.pid = os.fork()
        except OSError:
            self._socket.close()
            raise
        finally:
            if getattr(self, "pid", -1) == 0:
                _work(workers.fileno())
            workers.close()
        self._socket.setblocking(False)

    @property
    def returncode(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    async def communicate(self, pieces: Iterable[bytes]) -> tuple[bytes, bytes]:
        loop, parts = asyncio.get_running_loop(), list[bytes]()
        with self._socket, contextlib.suppress(ConnectionError):  # it has ended
            await loop.sock_sendall(self._socket, b"".join(pieces))
            self._socket.shutdown(socket.SHUT_WR)
            while part := await loop.sock_recv(self._socket, 2**20):
                parts.append(part)
        await self._wait()
        return b"".join(parts), b""

    async def _wait(self) -> None:
        while self.returncode is None:
            await asyncio.sleep(REAP_INTERVAL_S)

    async def end(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)
        await self._wait()


def _work(descriptor: int) -> None:
    """Never returns. The signal handlers, the connections and the files are those of the program."""
    code = 1
    try:
        gc.freeze()  # a collection would write to all of the shared memory
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        for standard in (0, 1):
            os.dup2(descriptor, standard)
        os.closerange(_OWN_DESCRIPTORS, _DESCRIPTORS_MAX)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        check_worker.MEMORY_MAX_BYTES = resource.RLIM_INFINITY  # the program's memory counts
        check_worker.main()
        sys.stdout.flush()
        code = 0
    except BaseException:  # noqa: BLE001 - as an interpreter does
        traceback.print_exc()
    finally:
        os._exit(code)


def _start(_checker: WorkerChecker) -> ForkedWorker:
    return _forked.pop() if _forked else ForkedWorker()


def fork_workers() -> None:
    """From now on, in this process. Those of a start are forked before the program has threads."""
    _forked.extend(ForkedWorker() for _ in range(_FORKED_EARLY))
    WorkerChecker._start = _start  # type: ignore[assignment,method-assign]


def start_interpreters() -> None:
    """From now on, in this process, workers are started as users' are: a fork copies the page tables of the whole program, on
    its main thread."""
    _forked.clear()
    WorkerChecker._start = _start_interpreter  # type: ignore[method-assign]
