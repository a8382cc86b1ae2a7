"""Progress of a long command: a bar on a terminal, a line now and then in a file, and what is said stands above it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LINES = 50
"""So many in a file, from the beginning to the end."""


@dataclass(slots=True)
class Steps:
    """`advance` after each of `total` steps."""

    name: str
    total: int
    console: Console
    bar: Progress | None
    done: int = 0
    failed: int = 0
    _every: int = field(init=False)

    def __post_init__(self) -> None:
        self._every = max(1, self.total // LINES)

    def advance(self, *, failed: bool = False) -> None:
        self.done += 1
        self.failed += failed
        if self.bar is not None:
            self.bar.advance(self.bar.task_ids[0])
        elif self.done % self._every == 0 and self.done < self.total:
            self.say(f"{self.done} of {self.total} {self.name}, {self.failed} failed")

    def say(self, words: str) -> None:
        self.console.print(words, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def steps(name: str, total: int) -> Iterator[Steps]:
    console = Console()
    if not console.is_terminal:
        yield Steps(name, total, console, None)
        return
    columns = (
        TextColumn(name),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        bar.add_task(name, total=total)
        yield Steps(name, total, console, bar)
