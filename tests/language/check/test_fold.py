"""Constant folding, and the arithmetic that it is done with."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysched.lang.ir.arithmetic import arithmetic, call, compare, negate
from policysched.lang.ir.expr import And, Arith, Compare, Const
from policysched.lang.ir.expr_analysis import is_floating
from policysched.lang.ir.rules import FilterRule, RangeNormalize, ScoreRule
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import FLOAT64_MAX
from policysched.model.quantity import INT64_MAX, INT64_MIN
from tests.language.check.checking import program

WHOLE = st.one_of(st.integers(INT64_MIN, INT64_MAX), st.sampled_from((INT64_MIN, INT64_MAX, -1, 0, 1)))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@given(st.sampled_from("+-*/"), WHOLE, WHOLE)
def test_whole_numbers_saturate_and_divide_toward_minus_infinity(op: str, left: int, right: int) -> None:
    folded = arithmetic(op, left, right, floating=False)

    if op == "/" and right == 0:
        assert folded is None
        return
    exact = {
        "+": left + right,
        "-": left - right,
        "*": left * right,
        "/": math.floor(left // right) if right else 0,
    }[op]
    assert folded == min(max(exact, INT64_MIN), INT64_MAX)


@given(st.sampled_from("+-*/"), FLOATS, FLOATS)
def test_floats_stay_finite(op: str, left: float, right: float) -> None:
    folded = arithmetic(op, left, right, floating=True)

    assert (folded is None) == (op == "/" and right == 0)
    assert folded is None or (math.isfinite(folded) and abs(folded) <= FLOAT64_MAX)


def test_functions_saturate_and_have_no_value_outside_their_domain() -> None:
    assert negate(INT64_MIN) == INT64_MAX
    assert call("abs", [INT64_MIN], floating=False) == INT64_MAX
    assert call("round", [2.5], floating=False) == 2
    assert call("round", [3.5], floating=False) == 4
    assert call("floor", [1e300], floating=False) == INT64_MAX
    assert call("exp", [1e6], floating=True) == FLOAT64_MAX
    assert call("log", [0.0], floating=True) is None
    assert call("sqrt", [-1], floating=True) is None
    assert call("clamp", [5, 7, 3], floating=False) == 3


def test_a_whole_number_beside_a_float_is_compared_as_a_float() -> None:
    assert compare("==", 2**53 + 1, float(2**53))
    assert not compare("==", 2**53 + 1, 2**53)


def condition(line: str) -> object:
    rule = program(line).rules.filters[-1]
    assert isinstance(rule, FilterRule)
    return rule.condition


def test_constants_are_folded_and_nested_junctions_become_one() -> None:
    folded = condition(
        "let a: cpu = 1\nfilter f require node.ready and (node.free.cpu > a + 500m and true) and not (1 > 2)"
    )

    assert isinstance(folded, And)
    assert len(folded.items) == 2
    second = folded.items[1]
    assert isinstance(second, Compare) and isinstance(second.right, Const)
    assert (second.right.value, second.right.type) == (1500, t.CPU)


def test_a_fraction_of_a_whole_unit_is_not_folded_away() -> None:
    folded = condition("filter f require node.free.memory > 1Gi * 0.7")

    assert isinstance(folded, Compare) and isinstance(folded.right, Arith)
    assert is_floating(folded.right)


def test_a_let_of_a_whole_unit_is_rounded_down() -> None:
    folded = condition("let most: bytes = 1Gi * 0.7\nfilter f require node.free.memory > most")

    assert isinstance(folded, Compare) and isinstance(folded.right, Const)
    assert folded.right.value == math.floor(2**30 * 0.7)


@pytest.mark.parametrize(
    ("norm", "low", "high"),
    [("range(0Mbps, 1Gbps)", 0.0, 1e9), ("range(100Mbps * 2, 1GBps)", 2e8, 8e9)],
)
def test_bounds_of_a_range_are_held_as_the_value_is(norm: str, low: float, high: float) -> None:
    metric = 'metric m: bandwidth { query = "q" unit = "B/s" join = instance every = 15s stale = 90s }'
    rule = program(metric, f"score s weight 1 lower m normalize {norm} missing best").rules.scores[-1]

    assert isinstance(rule, ScoreRule)
    assert rule.normalize == RangeNormalize(low, high)
    assert rule.missing == 100
