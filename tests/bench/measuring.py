"""The measurement helpers and the result row of benchmarks."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    measured: str
    target: str = ""


def median_s(run: Callable[[], object], times: int) -> float:
    """The median time of several runs, in seconds. `run` creates what must be new each time."""
    taken = []
    for _ in range(times):
        started = perf_counter()
        run()
        taken.append(perf_counter() - started)
    return median(taken)


def shown(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
