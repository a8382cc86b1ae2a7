"""int64 products and sums on arrays saturate as those of Python integers do."""

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysched.evaluate.columns.saturating_arithmetic import saturating_multiply
from policysched.evaluate.vector import aggregates
from policysched.evaluate.vector.aggregates import AggregateTerms, _integer_sum
from policysched.lang.ir.arithmetic import saturate
from policysched.model.quantity import INT64_MAX, INT64_MIN

_ROOT = 3_037_000_499  # of 2**63
INTEGERS = st.one_of(
    st.integers(INT64_MIN, INT64_MAX),
    st.builds(
        lambda base, by, sign: sign * (base + by),
        st.sampled_from([_ROOT, 2**31, 2**32]),
        st.integers(-9, 9),
        st.sampled_from([-1, 1]),
    ),
    st.sampled_from([INT64_MIN, INT64_MIN + 1, INT64_MAX, -1, 0, 1, 2, -2, 2**62, -(2**62), 3 * 2**61]),
)


class NoPythonIntegers(np.ndarray[Any, Any]):
    """An array that may not become one of Python integers, which takes a hundred times as long."""

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        assert dtype is not object, "computed in Python integers"
        return super().astype(dtype, *args, **kwargs)


@given(st.lists(st.tuples(INTEGERS, INTEGERS), min_size=1, max_size=20))
def test_products_saturate_exactly(pairs: list[tuple[int, int]]) -> None:
    left, right = (np.array(side, dtype=np.int64) for side in zip(*pairs, strict=True))

    product = saturating_multiply(left, right)

    assert product.dtype == np.int64
    assert product.tolist() == [saturate(first * second) for first, second in pairs]


@given(st.integers(1, INT64_MAX), st.integers(-2, 2), st.sampled_from([-1, 1]))
def test_products_at_the_limits_saturate_exactly(factor: int, off: int, sign: int) -> None:
    other = saturate(sign * (INT64_MAX // factor) + off)

    product = saturating_multiply(np.array([factor]), np.array([other]))

    assert product.tolist() == [saturate(factor * other)]


def test_saturating_products_cost_as_much_as_others() -> None:
    huge = np.full(5, INT64_MAX).view(NoPythonIntegers)

    assert saturating_multiply(huge, huge).tolist() == [INT64_MAX] * 5


def test_products_that_wrap_around_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "saturating_multiply", lambda left, right: left * right)

    with pytest.raises(AssertionError):
        test_products_at_the_limits_saturate_exactly()


def check_integer_sums(number: int) -> None:
    """Sums over nodes, and with each value replaced, are those of Python integers, saturated."""
    rng = Random(number)
    extremes = (0, 1, -1, INT64_MAX, INT64_MIN, INT64_MAX // 2, 2**32, -(2**32) - 1, 2**31 - 1)

    def values(count: int) -> list[int]:
        return [rng.choice((rng.choice(extremes), rng.randint(INT64_MIN, INT64_MAX))) for _ in range(count)]

    before = values(rng.randint(1, 40))
    after = values(len(before))
    counted = np.ones(len(before), np.bool_)
    replaced = AggregateTerms(np.array(after), counted)

    array = np.array(before).view(NoPythonIntegers)
    total = int(_integer_sum(AggregateTerms(array, counted)))
    totals = _integer_sum(AggregateTerms(array, counted, replaced)).tolist()

    assert total == saturate(sum(before))
    assert totals == [saturate(sum(before) - old + new) for old, new in zip(before, after, strict=True)]


def test_sums_of_large_integers_are_exact_and_saturate() -> None:
    for number in range(300):
        check_integer_sums(number)


def test_a_sum_that_forgets_the_carry_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregates, "_low_half", lambda values: values & 0x7FFFFFFF)

    with pytest.raises(AssertionError):
        test_sums_of_large_integers_are_exact_and_saturate()
