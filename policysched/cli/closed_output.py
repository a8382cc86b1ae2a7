"""Detects a closed reader of the output: `policysched show my.policy | head -3`.

Most programs are killed silently by SIGPIPE then. Python ignores that signal, because of sockets,
so the write fails instead, and click and rich each exit with 1. This module tells a closed output
from a broken connection and exits with the code that a shell shows for `cat`.
"""

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

EXIT_CODE = 128 + signal.SIGPIPE


class OutputClosed(Exception):
    """The reader of standard output or standard error has closed it."""


@contextmanager
def detect_closed_output() -> Iterator[None]:
    """Turn a failed write to stdout or stderr into OutputClosed."""
    try:
        yield
    except BrokenPipeError:
        closed = any(_is_closed(stream) for stream in (sys.stdout, sys.stderr))
        assert closed, "a connection broke and the error was not handled"
        raise OutputClosed from None
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich exits, after closing the stream
            raise OutputClosed from None
        raise


def open_missing_streams() -> None:
    """Replace streams that the caller closed (`policysched show my.policy >&-`) by /dev/null."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (lives as long as the process)


def discard_buffer(stream: IO[Any]) -> None:
    """Discard buffered output. Python flushes the stream again at exit, which would fail again."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, stream.fileno())
    os.close(devnull)


def _is_closed(stream: IO[Any]) -> bool:
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # not backed by a file descriptor, or closed
        return False
    poll = select.poll()
    poll.register(descriptor, 0)  # POLLERR and POLLHUP are always reported
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
