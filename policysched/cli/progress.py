"""The progress bar of long commands."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

REFRESH_S = 0.1


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Yields `show(what, done, total)`. The bar is drawn if standard error is a terminal. It has no thread, so that a command
    may fork while it is drawn."""
    if not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("")
        shown_s = 0.0

        def show(label: str, done: int, total: int) -> None:
            nonlocal shown_s
            if time.monotonic() - shown_s > REFRESH_S:
                shown_s = time.monotonic()
                bar.update(task, description=label, completed=done, total=total)
                bar.refresh()

        yield show
