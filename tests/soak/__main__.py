"""`python -m tests.soak`: an hour of churn in some minutes. Exit code 1 where memory grows."""

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tests.soak.world import Reading, Soak, judged

BARS = "▁▂▃▄▅▆▇█"
ROWS = 12


@click.command()
@click.option(
    "--minutes",
    type=click.FloatRange(min=10),
    default=60.0,
    show_default=True,
    help="How long, by the clock of the simulated world.",
)
@click.option("--deed-every-s", default=0.25, show_default=True, help="How long from one change to the next.")
@click.option("--seed", default=0, show_default=True, help="Which hour.")
def main(minutes: float, deed_every_s: float, seed: int) -> None:
    """Churn in a simulated cluster, and the scheduler's memory over time."""
    console, soak = Console(), Soak(span_s=minutes * 60, deed_every_s=deed_every_s, seed=seed)
    columns = (TextColumn("simulated"), BarColumn(), TextColumn("{task.fields[passed]}"), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task("time", total=soak.span_s, passed="")
        soak.run(lambda at_s: progress.update(bar, completed=at_s, passed=f"{at_s / 60:.0f} min"))
    found = judged(soak.readings)
    console.print(table(soak.readings))
    console.print(f"held by policysched: {line([one.held_bytes for one in soak.readings])}")
    console.print(
        f"{'flat' if found.flat else 'GROWS'}: {found.growth_bytes / 1024:+,.0f} KiB over the readings that count, "
        f"usually {found.usual_bytes / 1024:,.0f} KiB ({found.growth_bytes / found.usual_bytes:+.1%})"
    )
    if not found.flat:
        console.print("where more is held than after the first quarter:", *soak.grown, sep="\n  ")
    raise SystemExit(0 if found.flat else 1)


def table(readings: list[Reading]) -> Table:
    made = Table(
        *("minute", "pods", "waiting", "bound", "attempts", "policies offered", "KiB held", "MiB in all")
    )
    step = max(1, len(readings) // ROWS)
    for one in readings[step - 1 :: step]:
        cells = (
            one.pods,
            one.waiting,
            one.bound,
            one.decisions,
            one.replaced,
            one.held_bytes // 1024,
            one.rss_bytes >> 20,
        )
        made.add_row(f"{one.at_s / 60:.0f}", *(f"{cell:,}" for cell in cells))
    for column in made.columns:
        column.justify = "right"
    return made


def line(values: list[int]) -> str:
    """A plot in one line, from nothing to the most."""
    most = max(values)
    return "".join(BARS[min(len(BARS) - 1, value * len(BARS) // (most + 1))] for value in values)


if __name__ == "__main__":
    main()
