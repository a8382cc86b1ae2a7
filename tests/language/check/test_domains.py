"""What is said to be never or always true is so for every value: random conditions, evaluated one value at a time."""

import operator
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policysched.lang.ir import domains
from policysched.lang.ir import expr as e
from policysched.lang.ir.domains import DomainAnalysis
from policysched.lang.types.kinds import INT, RATIO, STRING, Type, TypeKind
from policysched.text import Source, Span

SPAN = Span(Source("test", ""), 0, 0)
TEXTS = Type(TypeKind.LIST, element=STRING)
COUNT = e.Attr("node", ("pods",), INT, SPAN)
PRIORITY = e.Attr("pod", ("priority",), INT, SPAN)
LOAD = e.Attr("node", ("load",), RATIO, SPAN)
POOL = e.Attr("pod", ("name",), STRING, SPAN)
VALUES: dict[e.Expr, tuple[int | float | str, ...]] = {
    COUNT: (0, 1, 2, 3, 4),
    PRIORITY: (-1, 0, 1, 2, 3),
    LOAD: (0.0, 0.5, 1.0, 1.5, 2.0),
    POOL: ("a", "b", "c"),
}
ASSIGNMENTS = [dict(zip(VALUES, values, strict=True)) for values in product(*VALUES.values())]
OPERATORS: dict[str, Callable[[object, object], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,  # type: ignore[dict-item]
    "<=": operator.le,  # type: ignore[dict-item]
    ">": operator.gt,  # type: ignore[dict-item]
    ">=": operator.ge,  # type: ignore[dict-item]
}


def holds(expr: e.Expr, values: dict[e.Expr, int | float | str]) -> bool:
    match expr:
        case e.Not(operand=operand):
            return not holds(operand, values)
        case e.And(items=items):
            return all(holds(item, values) for item in items)
        case e.Or(items=items):
            return any(holds(item, values) for item in items)
        case e.Compare(op=op, left=left, right=right):
            return OPERATORS[op](value_of(left, values), value_of(right, values))
        case e.In(item=item, options=e.Const(value=tuple(options))):
            return values[item] in options
        case _:
            raise AssertionError(expr)


def value_of(expr: e.Expr, values: dict[e.Expr, int | float | str]) -> object:
    return expr.value if isinstance(expr, e.Const) else values[expr]


def numbers() -> st.SearchStrategy[e.Expr]:
    def compared(subject: e.Expr, op: e.CompareOp, value: int | float, *, mirrored: bool) -> e.Expr:
        constant = e.Const(value, INT if value in (-1, 0, 1, 2, 3) else RATIO, SPAN)
        return e.Compare(op, constant, subject, SPAN) if mirrored else e.Compare(op, subject, constant, SPAN)

    return st.builds(
        compared,
        st.sampled_from([COUNT, PRIORITY, LOAD]),
        st.sampled_from(list(OPERATORS)),
        st.sampled_from([-1, 0, 1, 2, 3, 0.5, 1.5]),
        mirrored=st.booleans(),
    )


def atoms() -> st.SearchStrategy[e.Expr]:
    pairs = st.sampled_from([(COUNT, PRIORITY), (PRIORITY, COUNT), (LOAD, COUNT)])
    signs: st.SearchStrategy[e.CompareOp] = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
    ordered = st.builds(lambda pair, op: e.Compare(op, pair[0], pair[1], SPAN), pairs, signs)
    texts = st.builds(
        lambda op, text: e.Compare(op, POOL, e.Const(text, STRING, SPAN), SPAN),
        st.sampled_from(["==", "!="]),
        st.sampled_from(["a", "b"]),
    )
    listed = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1).map(
        lambda options: e.In(POOL, e.Const(tuple(options), TEXTS, SPAN), SPAN)
    )
    return st.one_of(numbers(), ordered, texts, listed)


CONDITIONS = st.recursive(
    atoms(),
    lambda inner: st.one_of(
        inner.map(lambda operand: e.Not(operand, SPAN)),
        st.lists(inner, min_size=2, max_size=4).map(lambda items: e.And(tuple(items), SPAN)),
        st.lists(inner, min_size=2, max_size=4).map(lambda items: e.Or(tuple(items), SPAN)),
    ),
    max_leaves=6,
)


def check_certain(condition: e.Expr) -> None:
    analysis = DomainAnalysis()
    outcomes = {holds(condition, values) for values in ASSIGNMENTS}
    for value in (True, False):
        if analysis.implied(condition, value) is None:
            assert outcomes == {not value}, condition


@settings(max_examples=200, deadline=None)
@given(CONDITIONS)
def test_no_value_satisfies_a_condition_that_is_never_true(condition: e.Expr) -> None:
    check_certain(condition)


def test_a_bound_that_is_taken_for_open_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = domains._compared

    def open_bounds(left: e.Expr, op: e.CompareOp, right: e.Expr) -> domains.Domains | None:
        return whole(left, {"<=": "<", ">=": ">"}.get(op, op), right)  # type: ignore[arg-type]

    const_one = e.Const(1, INT, SPAN)
    both = e.And((e.Compare("<=", COUNT, const_one, SPAN), e.Compare(">=", COUNT, const_one, SPAN)), SPAN)
    check_certain(both)
    monkeypatch.setattr(domains, "_compared", open_bounds)
    with pytest.raises(AssertionError):
        check_certain(both)


def test_what_either_side_of_an_or_allows_is_detected_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    zero, three = (e.Const(value, INT, SPAN) for value in (0, 3))
    either = e.Or((e.Compare("==", COUNT, zero, SPAN), e.Compare("==", COUNT, three, SPAN)), SPAN)
    condition = e.And((either, e.Compare(">", COUNT, e.Const(2, INT, SPAN), SPAN)), SPAN)
    check_certain(condition)
    monkeypatch.setattr(domains.Domain, "join", lambda self, _: replace(self))
    with pytest.raises(AssertionError):
        check_certain(condition)
