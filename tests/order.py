"""The order of tests for pytest-xdist: each worker begins with modules that wait for a control plane.

With `--dist worksteal` a worker gets a contiguous part of the tests and others steal from its end. In
the order of files one worker gets nearly all that wait, and the cores idle at the end of the run.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

WAITING_FOLDERS = ("e2e", "prometheus", "upstream")
"""Below `tests/`. Their tests start processes of others and wait more than they compute."""
SECONDS_PER_TEST = 5.0
SECONDS = {
    "e2e/test_chaos.py": 250.0,
    "e2e/test_outages.py": 150.0,
    "e2e/test_pod_groups.py": 60.0,
}
"""Modules that wait longer than their number of tests says."""

Item = TypeVar("Item")


def in_order_for_workers(items: Sequence[Item], module_of: Callable[[Item], str], workers: int) -> list[Item]:
    """The items in an order in which the equal parts of `workers` each begin with modules that wait, dealt by their
    duration. The tests of such a module stay together; the others keep their order."""
    waiting = defaultdict[str, list[Item]](list)
    others = list[Item]()
    for item in items:
        module = module_of(item)
        if module.partition("/")[0] in WAITING_FOLDERS:
            waiting[module].append(item)
        else:
            others.append(item)
    parts = _dealt(waiting, workers)
    ordered = list[Item]()
    for index, part in enumerate(parts):
        size = (len(items) - len(ordered)) // (workers - index)  # as pytest-xdist divides them
        fill = max(0, size - len(part))
        ordered += [*part, *others[:fill]]
        del others[:fill]
    return ordered


def _dealt(modules: Mapping[str, list[Item]], workers: int) -> list[list[Item]]:
    """The tests of the modules by worker: the longest module first, each to the worker with the least so far."""
    seconds = {
        module: SECONDS.get(module, SECONDS_PER_TEST * len(tests)) for module, tests in modules.items()
    }
    parts = [list[Item]() for _ in range(workers)]
    totals = [0.0] * workers
    for module in sorted(modules, key=lambda module: (-seconds[module], module)):
        least = totals.index(min(totals))
        totals[least] += seconds[module]
        parts[least] += modules[module]
    return parts
