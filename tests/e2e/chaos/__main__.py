"""`python -m tests.e2e.chaos`: run many seeds, or repeat one. Exit code 1 if a check failed."""

import asyncio
import sys
from collections import Counter

import click

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.programs import find_programs
from tests.e2e.chaos.bugs import BUGS
from tests.e2e.chaos.fault_profile import Fault
from tests.e2e.chaos.seed import Result, run_seeds
from tests.progress import steps


@click.command()
@click.option("--seeds", type=int, default=500, show_default=True, help="Number of seeds.")
@click.option("--first", type=int, default=0, show_default=True, help="First seed.")
@click.option(
    "--at-once", type=int, default=5, show_default=True, help="Seeds at a time, on one control plane."
)
@click.option("--bug", type=click.Choice(list(BUGS)), default=None, help="Plant a bug: a check must fail.")
@click.option("--log", "with_log", is_flag=True, help="Show policysched's log of each seed that failed.")
def main(seeds: int, first: int, at_once: int, bug: str | None, with_log: bool) -> None:
    """Inject faults between policysched and a real API server."""
    results = asyncio.run(_run(range(first, first + seeds), at_once, bug or "", with_log))
    injected: Counter[Fault] = sum((result.injected for result in results), Counter())
    click.echo(", ".join(f"{injected[fault]} {fault.name.lower()}" for fault in Fault))
    broken = [result for result in results if result.broken]
    for result in broken:
        click.echo(
            f"  python -m tests.e2e.chaos --seeds 1 --first {result.seed}{f' --bug {bug}' if bug else ''}"
        )
    click.echo(f"{len(results) - len(broken)} of {seeds} seeds clean")
    sys.exit(1 if broken else 0)


async def _run(seeds: range, at_once: int, bug: str, with_log: bool) -> list[Result]:
    results = []
    with ControlPlane(find_programs()) as control_plane, steps("seeds", len(seeds)) as progress:
        async for result in run_seeds(control_plane, seeds, at_once=at_once, bug=bug):
            results.append(result)
            if result.broken:
                progress.say(f"seed {result.seed}: {result.broken}")
                if with_log:
                    progress.say(result.log)
            progress.advance(failed=bool(result.broken))
    return results


main()
