"""Tables: aligned for a person on a terminal, one record a line with tabs between the fields for a program.

Rich is imported only where a table is printed: it takes a while to load.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from policysched.text.sanitize import escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_COLUMNS = 2**16
"""Nothing is wrapped in a file or a pipe."""


def output_console() -> "Console":
    """The console of standard output: as wide as the terminal, without limit for a file or a pipe."""
    from policysched.cli.escaping_console import EscapingConsole

    console = EscapingConsole(highlight=False)
    return console if console.is_terminal else EscapingConsole(highlight=False, width=_PIPE_COLUMNS)


def print_table(
    console: "Console",
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[int] = (),
    bold: Collection[int] = (),
    merge_first: bool = False,
) -> None:
    """`right` and `bold` are the numbers of columns and rows. With `merge_first` a terminal shows the first field once
    for adjacent rows that share it; a program gets it in every row."""
    rows = [tuple(row) for row in rows]
    if not console.is_terminal:
        for row in (headings, *rows):
            console.file.write("\t".join(escape_unprintable(_one_line(field)) for field in row) + "\n")
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number in right else "left", overflow="fold")
    number = 0
    for _, group in groupby(rows, key=lambda row: row[0] if merge_first else id(row)):
        for position, row in enumerate(group):
            first = row[0] if position == 0 else ""
            table.add_row(
                *(Text(field) for field in (first, *row[1:])), style="bold" if number in bold else ""
            )
            number += 1
    console.print(table)


def _one_line(field: str) -> str:
    return " ".join(field.split())
