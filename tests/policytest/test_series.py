"""Samples over time: the notation of tests of policies."""

import pytest

from policysched.lang.types.kinds import Type, TypeKind
from policysched.policytest.series import BadSeries, Gap, SeriesStep, parse_series

BANDWIDTH, INT = Type(TypeKind.BANDWIDTH), Type(TypeKind.INT)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("7", [7]),
        ("1 2 3", [1, 2, 3]),
        ("10x2", [10, 10, 10]),
        ("100+50x3", [100, 150, 200, 250]),
        ("9-4x2", [9, 5, 1]),
        ("10x1 _x3 stale", [10, 10, Gap.NONE, Gap.NONE, Gap.NONE, Gap.STALE]),
        ("_", [Gap.NONE]),
        ("-5+2x1", [-5, -3]),
    ],
)
def test_a_series_is_counted_as_promtool_counts(text: str, steps: list[SeriesStep]) -> None:
    assert parse_series(text, INT, "1") == steps


def test_values_have_the_units_of_the_policy_and_bare_numbers_that_of_the_metric() -> None:
    assert parse_series("900Mbps 100+25Mbpsx1", BANDWIDTH, "B/s") == [900e6, 800, 800 + 25e6]


@pytest.mark.parametrize(
    "text", ["fast", "", "10 apples", "1x", "1+x3", "x3", "1x999999999", "1x6000 1x6000", "nan", "10 % "]
)
def test_a_series_of_another_type_is_rejected_with_a_message(text: str) -> None:
    with pytest.raises(BadSeries) as refused:
        parse_series(text, BANDWIDTH, "B/s")

    assert str(refused.value)
