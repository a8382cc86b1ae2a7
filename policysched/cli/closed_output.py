"""Output that nobody reads any more: `policysched show my.policy | head -3`.

Programs that write end then without a word, by SIGPIPE. Python has that signal switched off, for sockets' sake, and gets
an error from the write; click and rich each make an exit code 1 of it. Here it is told apart from broken connections,
and becomes the exit code that a shell shows for `cat`.
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
    """The other end of standard output, or of standard error, is closed."""


@contextmanager
def detect_closed_output() -> Iterator[None]:
    """Raises NobodyReads where it was one of our own streams that could not be written."""
    try:
        yield
    except BrokenPipeError:
        ours = any(_is_closed(stream) for stream in (sys.stdout, sys.stderr))
        assert ours, "a connection broke, and nobody looked after it"
        raise OutputClosed from None
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich's way; it has let go of the stream already
            raise OutputClosed from None
        raise


def open_missing_streams() -> None:
    """Where the caller closed a stream (`policysched show my.policy >&-`) Python has none: what is said goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (lives as long as the process)


def discard_buffer(stream: IO[Any]) -> None:
    """What is left in it goes nowhere. Python flushes it once more as it ends, and would fail anew."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _is_closed(stream: IO[Any]) -> bool:
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # no file of the system's, or closed
        return False
    poll = select.poll()
    poll.register(number, 0)  # POLLERR and POLLHUP are always told
    return any(told & (select.POLLERR | select.POLLHUP) for _, told in poll.poll(0))
