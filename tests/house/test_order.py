"""The order of tests for pytest-xdist."""

from collections import Counter
from pathlib import Path

import pytest

from tests.order import SECONDS, in_order_for_workers

HERE = Path(__file__).parents[1]
IN_PROCESS = [f"cli/test_a.py::{index}" for index in range(100)]
WAITING = [
    *(f"e2e/test_chaos.py::{index}" for index in range(10)),
    *(f"e2e/test_other.py::{index}" for index in range(5)),
    *(f"prometheus/test_queries.py::{index}" for index in range(3)),
    *(f"upstream/test_upstream.py::{index}" for index in range(2)),
]
ITEMS = [*IN_PROCESS, *WAITING, *(f"text/test_z.py::{index}" for index in range(81))]


def module_of(item: str) -> str:
    return item.partition("::")[0]


def parts(workers: int) -> list[list[str]]:
    left, parts = in_order_for_workers(ITEMS, module_of, workers), list[list[str]]()
    for index in range(workers):
        size = len(left) // (workers - index)
        parts.append(left[:size])
        left = left[size:]
    return parts


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_each_worker_begins_with_tests_that_wait(workers: int) -> None:
    for part in parts(workers):
        assert module_of(part[0]) in {module_of(item) for item in WAITING}


@pytest.mark.parametrize("workers", [2, 3, 4, 300])
def test_no_test_is_lost_or_repeated(workers: int) -> None:
    assert Counter(in_order_for_workers(ITEMS, module_of, workers)) == Counter(ITEMS)


def test_a_module_that_waits_stays_on_one_worker_and_the_longest_comes_first() -> None:
    first_modules = [module_of(part[0]) for part in parts(4)]

    assert first_modules == [
        "e2e/test_chaos.py", "e2e/test_other.py", "prometheus/test_queries.py", "upstream/test_upstream.py"
    ]  # fmt: skip
    assert [item for item in parts(4)[0] if item in WAITING] == WAITING[:10]


def test_the_modules_with_a_duration_exist() -> None:
    assert SECONDS
    for module in SECONDS:
        assert (HERE / module).is_file(), module
