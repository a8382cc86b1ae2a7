"""`python -m tests.soak`: an hour of changes in some minutes. Exit code 1 if memory grows."""

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tests.soak.world import Reading, Soak, judge

BARS = "▁▂▃▄▅▆▇█"
ROWS = 12


@click.command()
@click.option(
    "--minutes",
    type=click.FloatRange(min=10),
    default=60.0,
    show_default=True,
    help="Virtual minutes to run.",
)
@click.option("--action-interval-s", default=0.25, show_default=True, help="Mean time between two changes.")
@click.option("--seed", default=0, show_default=True, help="The seed of the random changes.")
def main(minutes: float, action_interval_s: float, seed: int) -> None:
    """Change a simulated cluster at random and measure the scheduler's memory over time."""
    console, soak = Console(), Soak(span_s=minutes * 60, action_interval_s=action_interval_s, seed=seed)
    columns = (TextColumn("simulated"), BarColumn(), TextColumn("{task.fields[passed]}"), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task("time", total=soak.span_s, passed="")
        soak.run(lambda at_s: progress.update(bar, completed=at_s, passed=f"{at_s / 60:.0f} min"))
    verdict = judge(soak.readings)
    console.print(table(soak.readings))
    console.print(f"held by policysched: {line([reading.held_bytes for reading in soak.readings])}")
    console.print(
        f"{'flat' if verdict.flat else 'GROWS'}: {verdict.growth_bytes / 1024:+,.0f} KiB over the readings after the warm-up, "
        f"usually {verdict.usual_bytes / 1024:,.0f} KiB ({verdict.growth_bytes / verdict.usual_bytes:+.1%})"
    )
    if not verdict.flat:
        console.print("grown since the first quarter:", *soak.grown, sep="\n  ")
    raise SystemExit(0 if verdict.flat else 1)


def table(readings: list[Reading]) -> Table:
    made = Table(
        *("minute", "pods", "waiting", "bound", "attempts", "policies offered", "KiB held", "MiB in all")
    )
    step = max(1, len(readings) // ROWS)
    for reading in readings[step - 1 :: step]:
        cells = (
            reading.pods,
            reading.waiting,
            reading.bound,
            reading.decisions,
            reading.replaced,
            reading.held_bytes // 1024,
            reading.rss_bytes >> 20,
        )
        made.add_row(f"{reading.at_s / 60:.0f}", *(f"{cell:,}" for cell in cells))
    for column in made.columns:
        column.justify = "right"
    return made


def line(values: list[int]) -> str:
    """A sparkline from zero to the maximum."""
    most = max(values)
    return "".join(BARS[min(len(BARS) - 1, value * len(BARS) // (most + 1))] for value in values)


if __name__ == "__main__":
    main()
