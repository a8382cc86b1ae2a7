"""Runs several jobs at a time in forked processes: they read this process's memory, so that nothing is sent to them."""

import gc
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from typing import Any, TypeVar

Progress = Callable[[str, int, int], None]
"""What is being done, and how much of how much is done."""

Job = Callable[[Callable[[int], None]], Any]
"""Gets a function to which it says how much it has done."""

Result = TypeVar("Result")

_PROGRESS_S = 0.2


def no_progress(_what: str, _done: int, _total: int) -> None:
    return


def run_forked(
    jobs: Sequence[Callable[[Callable[[int], None]], Result]],
    workers: int,
    progress: Progress,
    label: str,
    total: int,
) -> Iterator[Result]:
    """The results in the order of the jobs. `total` is what all of them have to do."""
    workers = min(workers, len(jobs))
    if workers < 2 or "fork" not in multiprocessing.get_all_start_methods():
        before = 0
        for job in jobs:
            done = before

            def show(number: int, done: int = done) -> None:
                progress(label, done + number, total)

            yield job(show)
            before += total // len(jobs)
        return
    context = multiprocessing.get_context("fork")
    counts = context.Array("q", len(jobs), lock=False)
    _forked.append((tuple(jobs), counts))
    try:
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            running = [pool.submit(_run_forked, index) for index in range(len(jobs))]
            while wait(running, timeout=_PROGRESS_S, return_when=FIRST_EXCEPTION).not_done:
                progress(label, min(total, sum(counts)), total)
                if any(future.done() and future.exception() for future in running):
                    break
            for future in running:
                yield future.result()
    finally:
        _forked.pop()


_forked: list[tuple[tuple[Job, ...], Any]] = []
"""What the forked processes run, and where each counts what it has done."""


def _run_forked(index: int) -> Any:
    gc.freeze()  # collections would visit and copy what is inherited
    jobs, counts = _forked[-1]

    def count(done: int) -> None:
        counts[index] = done

    return jobs[index](count)
