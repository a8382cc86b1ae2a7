"""The order of tests for pytest-xdist."""

from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

from tests.order import COMPUTING_SECONDS, SECONDS, WAITING_SECONDS, in_order_for_workers

HERE = Path(__file__).parents[1]
COMPUTING = [
    *(f"evaluate/test_a.py::{index}" for index in range(300)),
    *(f"scheduler/test_b.py::{index}" for index in range(400)),
    *(f"simulation/test_c.py::{index}" for index in range(50)),
    *(f"soak/test_d.py::{index}" for index in range(20)),
]
WAITING = [
    *(f"e2e/test_chaos.py::{index}" for index in range(10)),
    *(f"e2e/test_other.py::{index}" for index in range(5)),
    *(f"prometheus/test_queries.py::{index}" for index in range(3)),
    *(f"upstream/test_upstream.py::{index}" for index in range(2)),
    *(f"conformance/test_live.py::{index}" for index in range(5)),
]
SHORT = [f"text/test_z.py::{index}" for index in range(2_000)]
ITEMS = [*COMPUTING, *WAITING, *SHORT]


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
def test_half_of_the_workers_wait_and_the_others_compute_and_at_the_end_all_tests_are_short(
    workers: int,
) -> None:
    kinds = ["".join("w" if i in WAITING else "c" for i in part if i not in SHORT) for part in parts(workers)]

    assert all(set(kind) == {"w"} for kind in kinds[: workers // 2])
    assert all(set(kind) == {"c"} for kind in kinds[workers // 2 :])
    assert all(part[-1] in SHORT for part in parts(workers))


@pytest.mark.parametrize("workers", [2, 3, 4, 300])
def test_no_test_is_lost_or_repeated(workers: int) -> None:
    assert Counter(in_order_for_workers(ITEMS, module_of, workers)) == Counter(ITEMS)


def test_the_tests_of_a_long_module_stay_together_on_one_worker() -> None:
    orders = [[module_of(item) for item in part if item not in SHORT] for part in parts(4)]

    stretches = [module for order in orders for module, _ in groupby(order)]
    assert sorted(stretches) == sorted({module_of(item) for item in [*COMPUTING, *WAITING]})


def test_the_folders_and_modules_with_a_duration_exist() -> None:
    for path in [*SECONDS, *WAITING_SECONDS, *COMPUTING_SECONDS]:
        assert (HERE / path).exists(), path
    assert not {*WAITING_SECONDS} & {*COMPUTING_SECONDS}
