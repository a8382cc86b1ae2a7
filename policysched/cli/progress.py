"""The progress bar of long commands."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

REFRESH_S = 0.1


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Yields `show(what, done, total)`. The bar is drawn once there is something to show, if standard error is a terminal. It
    has no thread, so that a command may fork while it is drawn."""
    bar: Progress | None = None
    shown_s = 0.0

    def show(label: str, done: int, total: int) -> None:
        nonlocal bar, shown_s
        if not is_terminal or time.monotonic() - shown_s <= REFRESH_S:
            return
        shown_s = time.monotonic()
        if bar is None:
            bar = _started()
        bar.update(bar.task_ids[0], description=label, completed=done, total=total)
        bar.refresh()

    is_terminal = sys.stderr.isatty()
    try:
        yield show
    finally:
        if bar is not None:
            bar.stop()


def _started() -> "Progress":
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True, auto_refresh=False)
    bar.add_task("")
    bar.start()
    return bar
