"""A single row is scored without NumPy, and must be scored as it would be among others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysched.evaluate.rules import normalizers
from policysched.evaluate.rules.normalizers import percent_of_range
from policysched.lang.ir.arithmetic import Number
from policysched.lang.types.kinds import FLOAT64_MAX
from policysched.model.quantity import INT64_MAX, INT64_MIN

WHOLE = st.sampled_from((INT64_MIN, -1, 0, 1, 7, 100, 2**53 + 1, INT64_MAX)) | st.integers(
    INT64_MIN, INT64_MAX
)
MEASURED = st.sampled_from((-FLOAT64_MAX, -0.1, 0.0, 5e-324, 0.29, 1e9, FLOAT64_MAX)) | st.floats(
    allow_nan=False, allow_infinity=False
)
BOUNDS = st.tuples(WHOLE | MEASURED, WHOLE | MEASURED).filter(lambda pair: float(pair[0]) < float(pair[1]))


def a_row_alone_scores_as_among_others(
    values: list[Number], dtype: type, bounds: tuple[Number, Number]
) -> None:
    raw = np.array(values, dtype)

    together = percent_of_range(raw, *bounds).tolist()

    assert [percent_of_range(raw[row : row + 1], *bounds).item() for row in range(len(values))] == together


@given(st.lists(WHOLE, min_size=2, max_size=5), BOUNDS)
def test_whole_numbers(values: list[int], bounds: tuple[Number, Number]) -> None:
    a_row_alone_scores_as_among_others(values, np.int64, bounds)


@given(st.lists(MEASURED, min_size=2, max_size=5), BOUNDS)
def test_measured_numbers(values: list[float], bounds: tuple[Number, Number]) -> None:
    a_row_alone_scores_as_among_others(values, np.float64, bounds)


def test_a_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = normalizers._percent_of_range_scalar
    monkeypatch.setattr(
        normalizers, "_percent_of_range_scalar", lambda *numbers: min(100, right(*numbers) + 1)
    )

    with pytest.raises(AssertionError):
        a_row_alone_scores_as_among_others([3, 50, 99], np.int64, (0, 100))
