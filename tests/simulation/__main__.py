"""`python -m tests.simulation --seeds N`: play seeds, on all cores, and print the command that replays what failed."""

import gc
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice

import click

from tests.progress import steps
from tests.simulation.failure_report import failure
from tests.simulation.world import Report, run_seed

LINES_KEPT = 40


@click.command()
@click.option("--seeds", default=200, show_default=True, help="How many seeds to play.")
@click.option("--first", default=0, show_default=True, help="The first of them.")
@click.option("--seed", type=int, help="Play this one only.")
@click.option("--trace", is_flag=True, help="With --seed: print everything that happened.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Processes at a time.")
def main(seeds: int, first: int, seed: int | None, trace: bool, jobs: int) -> None:
    """Play seeds of the fault simulation. Exit 1 where one of them went wrong."""
    if seed is not None:
        report = run_seed(seed)
        if trace:
            click.echo("\n".join(report.trace))
        click.echo(failure(report, LINES_KEPT) if report.problems else f"seed {seed}: clean, {report.digest}")
        raise SystemExit(1 if report.problems else 0)
    raise SystemExit(1 if _play(range(first, first + seeds), jobs) else 0)


def _play(seeds: range, jobs: int) -> int:
    drawn, bound = Counter[str](), 0
    with steps("seeds", len(seeds)) as progress, ProcessPoolExecutor(jobs) as pool:
        left = iter(seeds)
        # Enough at a time to keep every process busy, few enough that an interrupt ends soon.
        waiting = {pool.submit(_summary, seed) for seed in islice(left, 4 * jobs)}
        while waiting:
            done = next(as_completed(waiting))
            waiting.remove(done)
            waiting |= {pool.submit(_summary, seed) for seed in islice(left, 1)}
            report = done.result()
            drawn.update(report.drawn)
            bound += report.bound
            if report.problems:
                progress.say(failure(report, LINES_KEPT))
            progress.advance(failed=bool(report.problems))
    faults = ", ".join(f"{count} {name}" for name, count in sorted(drawn.items()))
    progress.say(f"{bound} pods bound; requests: {faults}")
    progress.say(f"{len(seeds) - progress.failed} of {len(seeds)} seeds clean")
    return progress.failed


def _summary(seed: int) -> Report:
    """The report without the trace when the seed is clean, to be sent between processes."""
    report = run_seed(seed)
    if seed % 10 == 0:
        gc.collect()  # 5 MB of garbage for each seed, which no other collection is sure to visit
    kept = report.trace[-LINES_KEPT:] if report.problems else ()
    return Report(seed, report.problems, kept, dict(report.drawn), report.decisions, report.bound)


if __name__ == "__main__":
    main()
