"""int64 products on arrays saturate as those of Python integers do."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysched.evaluate.columns.saturating_arithmetic import saturating_multiply
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
