"""The order of tests for pytest-xdist: at each time some workers wait for a control plane and the others compute.

With `--dist worksteal` a worker gets a contiguous part of the tests and others steal from its end. In
the order of files one worker gets nearly all that wait, and if all begin with them, the cores idle at first.

    worker 0   wait ── compute ── wait ── compute ── wait ── compute ── compute ── short ones, to be stolen
    worker 1   compute ── wait ── compute ── wait ── compute ── wait ── compute ── short ones, to be stolen
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

WAITING_SECONDS = {"e2e": 4.0, "page": 2.5, "prometheus": 6.5, "upstream": 4.0, "workloads": 19.0}
"""By folder below `tests/`, of a test. They start processes of others and wait more than they compute."""
COMPUTING_SECONDS = {
    "cli": 0.2,
    "comparison": 0.7,
    "conformance": 1.4,
    "daemon": 0.2,
    "evaluate": 0.3,
    "explanations": 1.6,
    "language": 0.1,
    "live": 0.9,
    "recording": 0.7,
    "scheduler": 0.15,
    "simulation": 0.7,
    "soak": 2.0,
}
"""The same of folders that compute. All other tests are short."""
SECONDS = {"e2e/test_chaos.py": 190.0, "e2e/test_network_experiment.py": 54.0, "e2e/test_outages.py": 87.0}
"""Modules that wait longer than their number of tests says."""
WAITED_AFTER = 0.8
"""A part of the computing: the tests that others steal at the end should not wait."""

Item = TypeVar("Item")
Module = tuple[float, list[Item]]
"""Seconds and tests, which stay together."""


def in_order_for_workers(items: Sequence[Item], module_of: Callable[[Item], str], workers: int) -> list[Item]:
    """The items in an order in which the equal parts of `workers` take about the same time and each alternates
    between modules that wait and modules that compute. Short tests fill the parts, in their order."""
    long, short = defaultdict[str, list[Item]](list), list[Item]()
    for item in items:
        module = module_of(item)
        (long[module] if _folder(module) in {*WAITING_SECONDS, *COMPUTING_SECONDS} else short).append(item)
    waiting = [(_seconds(name, tests), tests) for name, tests in long.items() if is_waiting(name)]
    computing = [(_seconds(name, tests), tests) for name, tests in long.items() if not is_waiting(name)]
    totals = [0.0] * workers
    parts = list(zip(_dealt(waiting, totals), _dealt(computing, totals), strict=True))
    ordered = list[Item]()
    for index, (waits, computes) in enumerate(parts):
        size = (len(items) - len(ordered)) // (workers - index)  # as pytest-xdist divides them
        part = _alternating(waits, computes, wait_first=index % 2 == 0)
        fill = max(0, size - len(part))
        ordered += [*part, *short[:fill]]
        del short[:fill]
    return [*ordered, *short]


def is_waiting(module: str) -> bool:
    return _folder(module) in WAITING_SECONDS


def _folder(module: str) -> str:
    return module.partition("/")[0]


def _seconds(module: str, tests: Sequence[Item]) -> float:
    of_a_test = {**WAITING_SECONDS, **COMPUTING_SECONDS}[_folder(module)]
    return SECONDS.get(module, of_a_test * len(tests))


def _dealt(modules: Sequence[Module[Item]], totals: list[float]) -> list[list[Module[Item]]]:
    """The modules by worker: the longest first, each to the worker with the least so far, which `totals` counts."""
    parts = [list[Module[Item]]() for _ in totals]
    for seconds, tests in sorted(modules, key=lambda module: -module[0]):
        least = totals.index(min(totals))
        totals[least] += seconds
        parts[least].append((seconds, tests))
    return parts


def _alternating(
    waiting: list[Module[Item]], computing: list[Module[Item]], *, wait_first: bool
) -> list[Item]:
    """Both in their order and in step, so that all that waits begins before `WAITED_AFTER` of the computing is done."""
    modules = [
        *_with_start(waiting, WAITED_AFTER, 0 if wait_first else 1),
        *_with_start(computing, 1.0, 1 if wait_first else 0),
    ]
    return [item for _, _, tests in sorted(modules, key=lambda module: module[:2]) for item in tests]


def _with_start(modules: list[Module[Item]], end: float, tie: int) -> Iterator[tuple[float, int, list[Item]]]:
    """The modules with their starts between 0 and `end`, and with `tie` for those that start at once."""
    total, before = sum(seconds for seconds, _ in modules), 0.0
    for seconds, tests in modules:
        yield end * before / total, tie, tests
        before += seconds
