"""`python -m tests.bench [NAME ...]`: run the benchmarks (all, or those whose name contains a NAME)
and print a table.

A benchmark is a file `bench_*.py` in this folder with a function `measure() -> Iterable[Row]`.
Times are the median of several runs on this machine. They are never asserted.
"""

import gc
import sys
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table

from policysched.gc_tuning import raise_gc_thresholds


def main(wanted: list[str]) -> None:
    raise_gc_thresholds()  # as the program does
    table = Table("benchmark", "measured", "target", title="policysched")
    names = sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py"))
    console = Console()
    for name in names:
        if not wanted or any(word in name for word in wanted):
            with console.status(name):
                for row in import_module(f"tests.bench.{name}").measure():
                    table.add_row(row.name, row.measured, row.target)
                    gc.collect()  # the next row does not pay for what this one leaves
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
