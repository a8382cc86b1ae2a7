"""The order of tests for pytest-xdist: half of the workers wait for control planes, and the others compute.

With `--dist worksteal` a worker gets a contiguous part of the tests and others steal from its end. In the
order of files one worker gets nearly all that wait. With twice as many workers as cores, those that compute
keep the cores busy whenever all others wait.

    worker 0   wait ──── wait ─────── wait ──────── wait ── short ones, to be stolen
    worker 1   wait ── wait ───── wait ──────── wait ─────── short ones, to be stolen
    worker 2   compute ─────── compute ──── compute ─── compute ── short ones, to be stolen
    worker 3   compute ── compute ─────── compute ─── compute ──── short ones, to be stolen
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

WAITING_SECONDS = {
    "conformance/test_live.py": 10.0,
    "conformance/test_replay_upstream.py": 0.5,
    "contract": 0.1,
    "e2e": 4.0,
    "page": 2.5,
    "prometheus": 6.5,
    "upstream": 4.0,
    "workloads": 19.0,
}
"""By folder or module below `tests/`, of a test. They start processes of others and wait more than they compute, or share the
control plane of those that do: each worker starts its own, which takes CPU until the worker ends. All modules with a
control plane are here."""
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
SECONDS = {"e2e/test_chaos.py": 110.0, "e2e/test_network_experiment.py": 54.0, "e2e/test_outages.py": 87.0}
"""Modules that wait longer than their number of tests says."""

Item = TypeVar("Item")
Module = tuple[float, list[Item]]
"""Seconds and tests, which stay together."""


def in_order_for_workers(items: Sequence[Item], module_of: Callable[[Item], str], workers: int) -> list[Item]:
    """The items in an order in which the first half of the equal parts of `workers` waits and the other
    computes, each about as long. Short tests fill the parts, in their order."""
    long, short = defaultdict[str, list[Item]](list), list[Item]()
    for item in items:
        module = module_of(item)
        is_long = is_waiting(module) or _folder(module) in COMPUTING_SECONDS
        (long[module] if is_long else short).append(item)
    waiting = [(_seconds(name, tests), tests) for name, tests in long.items() if is_waiting(name)]
    computing = [(_seconds(name, tests), tests) for name, tests in long.items() if not is_waiting(name)]
    parts = [*_dealt(waiting, workers // 2), *_dealt(computing, workers - workers // 2)]
    ordered = list[Item]()
    for index, part in enumerate(parts):
        size = (len(items) - len(ordered)) // (workers - index)  # as pytest-xdist divides them
        fill = max(0, size - len(part))
        ordered += [*part, *short[:fill]]
        del short[:fill]
    return [*ordered, *short]


def is_waiting(module: str) -> bool:
    return module in WAITING_SECONDS or _folder(module) in WAITING_SECONDS


def _folder(module: str) -> str:
    return module.partition("/")[0]


def _seconds(module: str, tests: Sequence[Item]) -> float:
    known = {**COMPUTING_SECONDS, **WAITING_SECONDS}
    of_a_test = known[module if module in known else _folder(module)]
    return SECONDS.get(module, of_a_test * len(tests))


def _dealt(modules: Sequence[Module[Item]], workers: int) -> list[list[Item]]:
    """The tests by worker: the longest module first, each to the worker with the least so far."""
    totals, parts = [0.0] * workers, [list[Item]() for _ in range(workers)]
    for seconds, tests in sorted(modules, key=lambda module: -module[0]):
        least = totals.index(min(totals))
        totals[least] += seconds
        parts[least] += tests
    return parts
