"""Quantities are exact and round up as Kubernetes does."""

import tracemalloc

import pytest

from policysched.model.quantity import parse_milli_units, parse_whole_units


@pytest.mark.parametrize(
    ("text", "milli"),
    [("250m", 250), ("2", 2000), ("0.1", 100), ("1500u", 2), ("1e-1", 100), ("2e3", 2_000_000)],
)
def test_cpu_is_read_in_milli_cores(text: str, milli: int) -> None:
    assert parse_milli_units(text) == milli


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("1Gi", 2**30),
        ("1.5Gi", 3 * 2**29),
        ("1G", 10**9),
        ("128974848", 128974848),
        ("129e6", 129_000_000),
        ("1m", 1),
    ],
)
def test_memory_is_read_in_bytes_and_rounded_up(text: str, units: int) -> None:
    assert parse_whole_units(text) == units


def test_quantities_saturate_at_int64() -> None:
    assert parse_whole_units("100000Ei") == 2**63 - 1


@pytest.mark.parametrize("text", ["", "abc", "1 Gi", "1gi", "--1", "1e", "0x10", "1Gi\n", "1e9999", "١"])
def test_an_invalid_quantity_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"quantity|suffix"):
        parse_whole_units(text)


def test_quantities_of_thousands_of_digits_are_not_kept() -> None:
    """Those of a PodGroup of a CRD, or in a selector of devices, each another one."""
    parse_milli_units("1")
    tracemalloc.start()
    for number in range(300):
        parse_milli_units("9" * 4_000 + f"{number:03}")
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert kept < 500_000
