"""A process that ends what killed tests leave behind.

A test run that is killed cannot clean up, and an orphaned control plane takes a gigabyte and two
ports. So the tests send the programs' process IDs and their data folder to a guardian, line by line
on its stdin:

    watch PID      end this process when stdin ends
    forget PID     it has ended already (its id may be reused)
    folder PATH    remove this folder when stdin ends

Stdin ends when the tests end for any reason, even by `kill -9`. Unlike Linux's parent-death signal,
this works from any thread and on any POSIX system. The guardian has its own session, so that Ctrl-C
in the tests does not end it first.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO


class Guardian:
    """The tests' end of the pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def watch(self, pid: int) -> None:
        self._tell(f"watch {pid}")

    def forget(self, pid: int) -> None:
        self._tell(f"forget {pid}")

    def folder(self, path: Path) -> None:
        self._tell(f"folder {path}")

    def dismiss(self) -> None:
        """Close stdin, and wait until the guardian has cleaned up."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


def guard(orders: TextIO) -> None:
    pids: set[int] = set()
    folders: list[str] = []
    for line in orders:
        word, _, rest = line.rstrip("\n").partition(" ")
        if word == "watch":
            pids.add(int(rest))
        elif word == "forget":
            pids.discard(int(rest))
        elif word == "folder":
            folders.append(rest)
        else:
            raise ValueError(f"the guardian does not know the order {line!r}")
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)  # SIGKILL ends a stopped process too
        except ProcessLookupError:
            continue
    for path in folders:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    guard(sys.stdin)
