"""Total arithmetic, and the logic of missing values."""

import pytest

from policysched.lang.ir.expr import (
    And,
    Attr,
    Compare,
    Const,
    Else,
    Expr,
    Has,
    If,
    In,
    Not,
    Or,
    Rank,
)
from policysched.lang.types import kinds
from policysched.lang.types.kinds import FLOAT64_MAX
from policysched.model.quantity import INT64_MAX, INT64_MIN
from policysched.text import Source, Span
from tests.builders import pod
from tests.conformance.kube_default import kube_default
from tests.reference import MISSING, value
from tests.reference.context import pod_context
from tests.reference.scores import scaled_score
from tests.reference.values import arithmetic, rounded, transcendental

HERE = Span(Source("test", ""), 0, 0)
TRUE, FALSE = Const(True, kinds.BOOL, HERE), Const(False, kinds.BOOL, HERE)
ABSENT = Attr("pod", ("labels", "absent"), kinds.STRING.as_optional(), HERE)
ONE = Const("x", kinds.STRING, HERE)
UNKNOWN = Compare("==", ABSENT, Const("a", kinds.STRING, HERE), HERE)


def worth(expr: Expr) -> object:
    return value(expr, pod_context(kube_default(), pod("p", labels={"tier": "gold"}), None))


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (And((UNKNOWN, FALSE), HERE), False),
        (And((FALSE, UNKNOWN), HERE), False),
        (And((UNKNOWN, TRUE), HERE), MISSING),
        (Or((UNKNOWN, TRUE), HERE), True),
        (Or((TRUE, UNKNOWN), HERE), True),
        (Or((UNKNOWN, FALSE), HERE), MISSING),
        (Not(UNKNOWN, HERE), MISSING),
        (Has(ABSENT, HERE), False),
        (Has(Attr("pod", ("labels", "tier"), kinds.STRING.as_optional(), HERE), HERE), True),
        (
            In(ABSENT, Const(("a",), kinds.Type(kinds.TypeKind.LIST, element=kinds.STRING), HERE), HERE),
            MISSING,
        ),
        (Rank(ABSENT, ("gold",), HERE), MISSING),
        (Rank(Const("gold", kinds.STRING, HERE), ("tin", "gold"), HERE), 1),
        (Rank(Const("iron", kinds.STRING, HERE), ("tin", "gold"), HERE), 2),
        (If(UNKNOWN, ONE, ONE, kinds.STRING, False, HERE), MISSING),
        (If(TRUE, ONE, ABSENT, kinds.STRING, False, HERE), "x"),
        (If(FALSE, ONE, ABSENT, kinds.STRING, False, HERE), MISSING),
        (Else(ABSENT, Const("x", kinds.STRING, HERE), kinds.STRING, False, HERE), "x"),
    ],
)
def test_a_missing_operand_makes_the_result_missing_unless_it_cannot_matter(
    expr: Expr, expected: object
) -> None:
    assert worth(expr) is expected or worth(expr) == expected


@pytest.mark.parametrize(
    ("op", "left", "right", "floating", "expected"),
    [
        ("+", INT64_MAX, 1, False, INT64_MAX),
        ("-", INT64_MIN, 1, False, INT64_MIN),
        ("*", INT64_MAX, -2, False, INT64_MIN),
        ("/", -7, 2, False, -4),
        ("/", INT64_MIN, -1, False, INT64_MAX),
        ("/", 1, 0, False, MISSING),
        ("/", 1, 0.0, True, MISSING),
        ("/", 7, 2, True, 3.5),
        ("*", FLOAT64_MAX, 2, True, FLOAT64_MAX),
        ("-", -FLOAT64_MAX, FLOAT64_MAX, True, -FLOAT64_MAX),
        ("+", 2**53 + 1, 0, True, float(2**53)),
    ],
)
def test_arithmetic_saturates(op: str, left: float, right: float, floating: bool, expected: object) -> None:
    assert arithmetic(op, left, right, floating=floating) == expected


@pytest.mark.parametrize(
    ("function", "number", "expected"),
    [
        ("round", 0.5, 0),
        ("round", 1.5, 2),
        ("round", -2.5, -2),
        ("floor", -0.5, -1),
        ("ceil", -0.5, 0),
        ("floor", 1e300, INT64_MAX),
        ("ceil", 7, 7),
    ],
)
def test_rounding_is_half_to_even(function: str, number: float, expected: int) -> None:
    assert rounded(function, number) == expected


def test_functions_outside_their_domain_are_missing() -> None:
    assert transcendental("log", 0.0) is MISSING
    assert transcendental("sqrt", -1.0) is MISSING
    assert transcendental("exp", 1000.0) == FLOAT64_MAX


@pytest.mark.parametrize(
    ("number", "low", "high", "expected"),
    [
        (5, 0, 10, 50),
        (2, 0, 3, 66),
        (-1, 0, 3, 0),
        (9, 0, 3, 100),
        (2**62, 0, 2**62 + 1, 99),  # beyond what a float64 tells apart from 100
        (0.5, 0.0, 1.0, 50),
    ],
)
def test_scaled_scores_are_rounded_down_and_exact_for_integers(
    number: float, low: float, high: float, expected: int
) -> None:
    assert scaled_score(number, low, high) == expected
