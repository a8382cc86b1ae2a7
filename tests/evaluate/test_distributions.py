"""Distributions: exact to nine digits, defined everywhere, and equal as scalars and as vectors."""

from fractions import Fraction
from itertools import product
from math import comb

import numpy as np
import pytest

from policysched.evaluate.vector import distributions as vectors
from policysched.lang.ir.distributions import beta_cdf, normal_cdf

POINTS = (-1.0, 0.0, 0.05, 0.3, 0.5, 0.9, 0.999, 1.0, 2.0)
MEANS = (-0.5, 0.0, 1e-9, 0.05, 0.2, 0.5, 0.65, 0.9, 0.99, 1.0, 3.0)
DEVIATIONS = (-1.0, 0.0, 1e-200, 1e-9, 1e-4, 0.002, 0.01, 0.1, 0.3, 0.499999, 0.5, 4.0)


def exact_beta_cdf(x: Fraction, a: int, b: int) -> Fraction:
    """`I_x(a, b)` of integers: the probability of at least `a` successes in `a + b - 1` trials."""
    trials = a + b - 1
    return sum(
        (comb(trials, hits) * x**hits * (1 - x) ** (trials - hits) for hits in range(a, trials + 1)),
        Fraction(0),
    )


@pytest.mark.parametrize(
    ("a", "b"), [(1, 1), (2, 3), (10, 20), (5, 1), (40, 2), (300, 100), (500, 500), (1200, 30)]
)
@pytest.mark.parametrize("percent", [10, 30, 45, 75, 90, 99])
def test_the_beta_cdf_equals_the_exact_binomial_probability(a: int, b: int, percent: int) -> None:
    mean = a / (a + b)
    deviation = (mean * (1 - mean) / (a + b + 1)) ** 0.5
    expected = float(exact_beta_cdf(Fraction(percent, 100), a, b))

    probability = beta_cdf(percent / 100, mean, deviation)

    assert probability == pytest.approx(expected, rel=1e-9, abs=1e-13)


def test_the_two_methods_agree_where_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The continued fraction serves `a + b` below a million, the expansion above it."""
    cases = [(0.3 + off, 0.3, 0.00045) for off in (-0.0014, -0.0003, -2e-6, 0.0, 1e-6, 0.0001, 0.001)]
    by_expansion = [beta_cdf(*case) for case in cases]

    monkeypatch.setattr("policysched.lang.ir.distributions.TEMME_SIZE_MIN", 4e6)

    assert [beta_cdf(*case) for case in cases] == pytest.approx(by_expansion, abs=2e-9)


def test_a_narrow_distribution_at_its_mean_does_not_underflow() -> None:
    assert 1 - beta_cdf(0.9, 0.9, 0.005) == pytest.approx(0.505911387606, abs=1e-11)
    assert beta_cdf(0.9, 0.9, 1e-7) == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize(
    ("x", "mean", "deviation", "expected"),
    [
        (0.9, 0.0, 0.3, 1.0),  # no use at all, whatever the deviation
        (0.9, -2.0, 0.3, 1.0),
        (0.9, 0.9, 0.0, 1.0),
        (0.9, 0.9, -0.1, 1.0),
        (0.9, 0.91, 0.0, 0.0),
        (0.9, 0.05, 0.3, 0.0),  # no beta distribution has this deviation
        (0.9, 1.0, 0.025, 0.0),
        (1.0, 0.65, 0.1, 1.0),
        (0.0, 0.65, 0.1, 0.0),
        (0.9, 0.65, 0.1, 1 - 0.001098723206),
        (0.9, 0.85, 0.05, 1 - 0.157290087),
    ],
)
def test_degenerate_distributions_follow_the_safe_scheduler_paper(
    x: float, mean: float, deviation: float, expected: float
) -> None:
    assert beta_cdf(x, mean, deviation) == pytest.approx(expected, abs=1e-9)


def test_a_normal_distribution_is_symmetric_and_a_step_at_zero_deviation() -> None:
    assert normal_cdf(3.0, 3.0, 2.0) == 0.5
    assert normal_cdf(1.96, 0.0, 1.0) == pytest.approx(0.9750021048517795, rel=1e-14)
    assert normal_cdf(-8.0, 0.0, 1.0) == pytest.approx(6.220960574271785e-16, rel=1e-12)
    assert (normal_cdf(3.0, 3.0, 0.0), normal_cdf(2.9, 3.0, -1.0)) == (1.0, 0.0)
    assert normal_cdf(1.7e308, -1.7e308, 1e-300) == 1.0


def every_case() -> list[tuple[float, float, float]]:
    return list(product(POINTS, MEANS, DEVIATIONS))


def columns() -> list[np.ndarray]:
    return [np.array(column) for column in zip(*every_case(), strict=True)]


def test_vectors_equal_scalars_to_the_last_bit() -> None:
    assert vectors.beta_cdf(columns()).tolist() == [beta_cdf(*case) for case in every_case()]
    assert vectors.normal_cdf(columns()).tolist() == [normal_cdf(*case) for case in every_case()]


def test_a_planted_early_end_of_the_fraction_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policysched.lang.ir.distributions.CONVERGENCE_TOLERANCE", 1e-6)
    early = vectors.beta_cdf(columns()).tolist()
    monkeypatch.undo()

    assert early != [beta_cdf(*case) for case in every_case()]
