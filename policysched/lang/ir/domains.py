"""What a condition says about each value that it reads: intervals and sets, for conditions that are never or always true.

`implied_domains(expr, True)` has for each value the domain that it must be in where the condition is true; None if there
is no such value, so that the condition is never true. With False: where it is false. The domains may be too large, so
"never true" is certain and its absence is not.
"""

from dataclasses import dataclass, field, replace
from math import ceil, floor, inf

from policysched.lang.ir.expr import (
    And,
    Attr,
    Bucket,
    Call,
    Compare,
    CompareOp,
    Const,
    CountPodsOnNode,
    Expr,
    In,
    ListFold,
    Not,
    Or,
    PodTotal,
    Rank,
)
from policysched.lang.ir.expr_analysis import is_floating, type_of
from policysched.lang.types.kinds import TypeKind

Value = bool | int | float | str
Subject = Expr | tuple[Expr, Expr]
"""A value, or two values whose order is what is known: -1, 0 or 1."""
Domains = dict[Subject, "Domain"]

_NOT_NEGATIVE = frozenset({"pods", "requests", "limits", "requested", "allocatable", "attempts", "share"})
_MIRRORED: dict[CompareOp, CompareOp] = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_NEGATED: dict[CompareOp, CompareOp] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_SIGNS: dict[CompareOp, frozenset[Value]] = {
    "<": frozenset({-1}),
    "<=": frozenset({-1, 0}),
    ">": frozenset({1}),
    ">=": frozenset({0, 1}),
    "==": frozenset({0}),
    "!=": frozenset({-1, 1}),
}


@dataclass(frozen=True, slots=True)
class Domain:
    """The values between two bounds; only `values` where that is not None; none of `excluded`."""

    low: float = -inf
    high: float = inf
    low_open: bool = False
    high_open: bool = False
    values: frozenset[Value] | None = None
    excluded: frozenset[Value] = frozenset()

    def __contains__(self, value: Value) -> bool:
        if value in self.excluded or (self.values is not None and value not in self.values):
            return False
        if isinstance(value, str):
            return True
        above = value > self.low or (value == self.low and not self.low_open)
        return above and (value < self.high or (value == self.high and not self.high_open))

    @property
    def is_empty(self) -> bool:
        if self.values is not None:
            return not any(value in self for value in self.values)
        if self.low == self.high:
            return self.low not in self
        return self.low > self.high

    def meet(self, other: "Domain") -> "Domain":
        """The values in both."""
        low, low_open = max((self.low, self.low_open), (other.low, other.low_open))
        high, is_closed = min((self.high, not self.high_open), (other.high, not other.high_open))
        values = self.values if other.values is None else other.values
        if self.values is not None and other.values is not None:
            values = self.values & other.values
        return Domain(low, high, low_open, not is_closed, values, self.excluded | other.excluded)

    def join(self, other: "Domain") -> "Domain":
        """At least the values in either."""
        if self.values is not None and other.values is not None:
            kept = {v for v in self.values if v in self} | {v for v in other.values if v in other}
            return Domain(values=frozenset(kept))
        left, right = self._bounded(), other._bounded()
        low, is_closed = min((left.low, left.low_open), (right.low, right.low_open))
        high, high_closed = max((left.high, not left.high_open), (right.high, not right.high_open))
        excluded = {v for v in self.excluded | other.excluded if v not in self and v not in other}
        return Domain(low, high, is_closed, not high_closed, None, frozenset(excluded))

    def _bounded(self) -> "Domain":
        """Bounds instead of numbers that are listed."""
        if self.values is None:
            return self
        numbers = [value for value in self.values if not isinstance(value, str)]
        if len(numbers) < len(self.values) or not numbers:
            return Domain()
        return replace(self, low=min(numbers), high=max(numbers), low_open=False, high_open=False)


@dataclass(slots=True)
class DomainAnalysis:
    """Caches what the parts of one expression imply, so that every part can be queried."""

    _known: dict[tuple[int, bool], Domains | None] = field(default_factory=dict)

    def implied(self, expr: Expr, value: bool) -> Domains | None:
        """The domains where the condition has the value; None if it never has."""
        key = (id(expr), value)
        if key not in self._known:
            self._known[key] = self._compute(expr, value)
        return self._known[key]

    def _compute(self, expr: Expr, value: bool) -> Domains | None:
        match expr:
            case Const():
                return {} if expr.value is value else None
            case Not(operand=operand):
                return self.implied(operand, not value)
            case And(items=items) | Or(items=items):
                parts = [self.implied(item, value) for item in items]
                is_conjunction = isinstance(expr, And) is value
                return _meet_all(parts) if is_conjunction else _join_all(parts)
            case Compare(op=op, left=left, right=right):
                return _compared(left, op if value else _NEGATED[op], right)
            case In(item=item, options=Const(value=tuple(options))) if not isinstance(item, Const):
                listed = frozenset[Value](options)
                return _single(item, Domain(values=listed) if value else Domain(excluded=listed))
            case _:
                return {expr: Domain(values=frozenset({value}))}


def meet(left: Domains, right: Domains) -> Domains | None:
    """What holds where both hold; None if they contradict each other."""
    result = dict(left)
    for subject, domain in right.items():
        if isinstance(subject, tuple) and subject[::-1] in result:
            subject, domain = subject[::-1], _mirrored(domain)
        if subject in result:
            domain = _integral(subject, result[subject].meet(domain))
            if domain.is_empty:
                return None
        result[subject] = domain
    return result


def _mirrored(domain: Domain) -> Domain:
    assert domain.values is not None, "an order is one of three"
    return Domain(values=frozenset(-value for value in domain.values if not isinstance(value, str)))


def _meet_all(parts: list[Domains | None]) -> Domains | None:
    result: Domains | None = {}
    for part in parts:
        if result is None or part is None:
            return None
        result = meet(result, part) if result else part
    return result


def _join_all(parts: list[Domains | None]) -> Domains | None:
    part_domains = [part for part in parts if part is not None]
    if not part_domains:
        return None
    result = part_domains[0]
    for part in part_domains[1:]:
        result = {
            subject: domain.join(part[subject]) for subject, domain in result.items() if subject in part
        }
    return result


def _compared(left: Expr, op: CompareOp, right: Expr) -> Domains | None:
    if isinstance(left, Const) and not isinstance(right, Const):
        left, op, right = right, _MIRRORED[op], left
    if not isinstance(right, Const) or isinstance(left, Const):
        return {(left, right): Domain(values=_SIGNS[op])} if left != right else {}
    value = right.value
    assert not isinstance(value, tuple), right
    if op == "==":
        return _single(left, Domain(values=frozenset({value})))
    if op == "!=":
        return _single(left, Domain(excluded=frozenset({value})))
    assert not isinstance(value, str), right
    if op in ("<", "<="):
        return _single(left, Domain(high=value, high_open=op == "<"))
    return _single(left, Domain(low=value, low_open=op == ">"))


def _single(subject: Expr, domain: Domain) -> Domains | None:
    domain = _integral(subject, _natural(subject).meet(domain))
    return None if domain.is_empty else {subject: domain}


def _integral(subject: Subject, domain: Domain) -> Domain:
    """Closed bounds where the value is a whole number."""
    if isinstance(subject, tuple) or not _is_whole(subject):
        return domain
    low, high = domain.low, domain.high
    if low > -inf:
        low = floor(low) + 1 if domain.low_open else ceil(low)
    if high < inf:
        high = ceil(high) - 1 if domain.high_open else floor(high)
    return replace(domain, low=low, high=high, low_open=False, high_open=False)


def _is_whole(subject: Expr) -> bool:
    type_ = type_of(subject)
    return type_.kind is TypeKind.QOS or (type_.is_numeric and not is_floating(subject))


def _natural(subject: Expr) -> Domain:
    """The values that it can have at all."""
    match subject:
        case Attr(path=path, type=type_) if path[0] in _NOT_NEGATIVE and type_.is_numeric:
            return Domain(low=0)
        case CountPodsOnNode() | PodTotal(value=None) | ListFold(function="count"):
            return Domain(low=0)
        case Bucket(count=count):
            return Domain(low=0, high=count - 1)
        case Rank(order=order):
            return Domain(low=0, high=len(order))
        case Call(function="normal_cdf" | "beta_cdf"):
            return Domain(low=0, high=1)
        case Call(function="abs" | "sqrt"):
            return Domain(low=0)
        case _:
            return Domain(low=0, high=2) if type_of(subject).kind is TypeKind.QOS else Domain()
