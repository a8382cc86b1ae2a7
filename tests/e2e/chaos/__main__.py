"""`python -m tests.e2e.chaos`: many seeds, or one again. Exit code 1 where something did not hold."""

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
@click.option("--seeds", type=int, default=500, show_default=True, help="How many.")
@click.option("--first", type=int, default=0, show_default=True, help="The first of them.")
@click.option(
    "--at-once", type=int, default=5, show_default=True, help="How many at a time, on one control plane."
)
@click.option(
    "--bug", type=click.Choice(list(BUGS)), default=None, help="Plant a bug: something must not hold."
)
@click.option(
    "--log", "with_log", is_flag=True, help="Show policysched's log of each seed that broke something."
)
def main(seeds: int, first: int, at_once: int, bug: str | None, with_log: bool) -> None:
    """A bad road between policysched and a real API server."""
    found = asyncio.run(_run(range(first, first + seeds), at_once, bug or "", with_log))
    met: Counter[Fault] = sum((one.met for one in found), Counter())
    click.echo(", ".join(f"{met[fault]} {fault.name.lower()}" for fault in Fault))
    broken = [one for one in found if one.broken]
    for one in broken:
        click.echo(
            f"  python -m tests.e2e.chaos --seeds 1 --first {one.seed}{f' --bug {bug}' if bug else ''}"
        )
    click.echo(f"{len(found) - len(broken)} of {seeds} seeds clean")
    sys.exit(1 if broken else 0)


async def _run(seeds: range, at_once: int, bug: str, with_log: bool) -> list[Result]:
    found = []
    with ControlPlane(find_programs()) as control_plane, steps("seeds", len(seeds)) as progress:
        async for one in run_seeds(control_plane, seeds, at_once=at_once, bug=bug):
            found.append(one)
            if one.broken:
                progress.say(f"seed {one.seed}: {one.broken}")
                if with_log:
                    progress.say(one.log)
            progress.advance(failed=bool(one.broken))
    return found


main()
