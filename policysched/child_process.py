"""A child process that is started without a copy of this process.

uvloop starts processes with `fork`, which copies the page tables: 14 ms of the event loop's time for a scheduler of 300 MiB.
`subprocess` uses `vfork`, 0.3 ms whatever the size.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Sequence
from typing import IO


class ChildProcess:
    """The program with these arguments, and pipes to it. Raises OSError if no process can be started. `own_group`: it may
    start others."""

    def __init__(self, arguments: Sequence[str], *, own_group: bool = False) -> None:
        pipe = subprocess.PIPE
        self._popen = subprocess.Popen(
            arguments, stdin=pipe, stdout=pipe, stderr=pipe, process_group=0 if own_group else None
        )
        # `communicate` would close it.
        self._stdin, self._popen.stdin = self._popen.stdin, None
        self._own_group = own_group
        self._communication: asyncio.Future[tuple[tuple[bytes, bytes], None]] | None = None
        self.pid = self._popen.pid

    @property
    def returncode(self) -> int | None:
        """None: it runs."""
        return self._popen.poll()

    async def communicate(self, pieces: Iterable[bytes]) -> tuple[bytes, bytes]:
        """Its output and its errors, once it has ended. The pieces are made and sent on a thread; a process that needs no more
        of them may end before. Call `end` if this is cancelled."""
        assert self._stdin is not None, "a pipe"
        self._communication = asyncio.gather(
            asyncio.to_thread(self._popen.communicate), asyncio.to_thread(_send, self._stdin, pieces)
        )
        output, _ = await asyncio.shield(self._communication)
        return output

    async def end(self) -> None:
        """Kill it if it runs."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if self._own_group else os.kill)(self.pid, signal.SIGKILL)
        if self._communication is not None:
            await asyncio.wait([self._communication])
            return
        await asyncio.to_thread(self._popen.wait)
        for pipe in (self._stdin, self._popen.stdout, self._popen.stderr):
            assert pipe is not None, "a pipe"
            pipe.close()


def _send(stdin: IO[bytes], pieces: Iterable[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError), stdin:
        for piece in pieces:
            stdin.write(piece)
