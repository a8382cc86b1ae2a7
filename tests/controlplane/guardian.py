"""A small process that outlives the tests for a moment, and ends what they leave behind.

A test run that is killed cannot clean up, and a control plane that nobody owns keeps a gigabyte and two ports. So the
programs' ids and their data folder are told to a guardian, line by line on its stdin:

    watch PID      end this process when stdin ends
    forget PID     it has ended already (its id may by now be another's)
    folder PATH    remove this folder when stdin ends

Stdin ends when the tests end, however they end: that is the one signal that even `kill -9` gives. Unlike Linux's parent-death
signal it works from any thread and on any POSIX system. The guardian sits in a session of its own, so that a Ctrl-C for the tests does not end it first.
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
        """Let the guardian do its work now, and wait until it has."""
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
            os.kill(pid, signal.SIGKILL)  # ends a stopped process too
        except ProcessLookupError:
            continue
    for path in folders:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    guard(sys.stdin)
