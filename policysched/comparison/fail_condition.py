"""The condition of `diff --fail-on`, in the expressions of the policy language: `newly_pending > 0 or moved > 5%`.

A name is a number of pods. Beside a percentage it is their share of the pods that were decided.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from operator import eq, ge, gt, le, lt, ne

from policysched.comparison.comparison import Comparison
from policysched.comparison.outcomes import CHANGE_KINDS
from policysched.lang.parse import parse
from policysched.lang.syntax import tree as s
from policysched.text import Source

NAMES = (*CHANGE_KINDS, "changed", "pending")

_PREFIX = "let fail: bool = "
_COMPARISONS = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


class BadFailCondition(Exception):
    """One line, with the column of the mistake."""


@dataclass(frozen=True, slots=True)
class FailCondition:
    text: str
    _expression: s.Expression

    def holds(self, comparison: Comparison) -> bool:
        counts = {
            **comparison.counts(),
            "changed": len(comparison.changed),
            "pending": comparison.after.waiting.pods,
        }
        return _truth(self._expression, counts, comparison.pods)


def parse_fail_condition(text: str) -> FailCondition:
    """Raises BadFailCondition for what is not a condition on the names."""
    header = "policy diff version 1\n"
    document, diagnostics = parse(Source("--fail-on", f"{header}{_PREFIX}{text}"))
    offset = len(header) + len(_PREFIX)
    if diagnostics:
        span, message = diagnostics[0].span, diagnostics[0].message
        raise BadFailCondition(f"column {max(1, (span.start if span else 0) - offset + 1)}: {message}")
    declared = document.statements[-1]
    if len(document.statements) != 2 or not isinstance(declared, s.LetDecl):
        raise BadFailCondition("expected one condition")
    _check_condition(declared.value, offset)
    return FailCondition(text, declared.value)


def _mistake(node: s.Expression, offset: int, message: str) -> BadFailCondition:
    return BadFailCondition(f"column {node.span.start - offset + 1}: {message}")


def _check_condition(node: s.Expression, offset: int) -> None:
    match node:
        case s.BinaryExpr(op="and" | "or", left=left, right=right):
            _check_condition(left, offset)
            _check_condition(right, offset)
        case s.UnaryExpr(op="not", operand=operand):
            _check_condition(operand, offset)
        case s.BinaryExpr(op=op, left=left, right=right) if op in _COMPARISONS:
            for side in (left, right):
                _check_number(side, offset)
            parts = [*_number_parts(left), *_number_parts(right)]
            literals = {part.suffix for part in parts if isinstance(part, s.NumberLit)}
            if not any(isinstance(part, s.NameExpr) for part in parts):
                raise _mistake(node, offset, "compares two constants")
            if len(literals) > 1:
                raise _mistake(node, offset, "mixes a number of pods with a percentage")
        case _:
            raise _mistake(node, offset, "expected a comparison such as `moved > 5%`")


def _check_number(node: s.Expression, offset: int) -> None:
    match node:
        case s.NumberLit(digits=digits, suffix=suffix):
            if suffix not in ("", "%"):
                raise _mistake(
                    node, offset, f"`{digits}{suffix}` is neither a number of pods nor a percentage"
                )
        case s.NameExpr(name=name):
            if name not in NAMES:
                matches = get_close_matches(name, NAMES, n=1)
                hint = f"did you mean `{matches[0]}`?" if matches else f"known are {', '.join(NAMES)}"
                raise _mistake(node, offset, f"unknown name `{name}`; {hint}")
        case s.BinaryExpr(op="+" | "-", left=left, right=right):
            _check_number(left, offset)
            _check_number(right, offset)
        case _:
            raise _mistake(node, offset, "expected a name, a number or a percentage")


def _number_parts(node: s.Expression) -> list[s.Expression]:
    """The names and literals of a checked number."""
    if isinstance(node, s.BinaryExpr):
        return [*_number_parts(node.left), *_number_parts(node.right)]
    return [node]


def _is_share(node: s.Expression) -> bool:
    return any(isinstance(part, s.NumberLit) and part.suffix == "%" for part in _number_parts(node))


def _truth(node: s.Expression, counts: Mapping[str, int], pods: int) -> bool:
    match node:
        case s.BinaryExpr(op="and", left=left, right=right):
            return _truth(left, counts, pods) and _truth(right, counts, pods)
        case s.BinaryExpr(op="or", left=left, right=right):
            return _truth(left, counts, pods) or _truth(right, counts, pods)
        case s.UnaryExpr(operand=operand):
            return not _truth(operand, counts, pods)
        case s.BinaryExpr(op=op, left=left, right=right):
            of_pods = pods if _is_share(left) or _is_share(right) else 0
            compare = _COMPARISONS[op]
            return bool(compare(_number(left, counts, of_pods), _number(right, counts, of_pods)))
    raise AssertionError(f"{node} is not a condition")


def _number(node: s.Expression, counts: Mapping[str, int], of_pods: int) -> float:
    """`of_pods`: what names are shares of; 0: they are counts."""
    match node:
        case s.NumberLit(digits=digits, suffix="%"):
            return float(digits) / 100
        case s.NumberLit(digits=digits):
            return float(digits)
        case s.NameExpr(name=name):
            return counts[name] / of_pods if of_pods else counts[name]
        case s.BinaryExpr(op=op, left=left, right=right):
            first, second = _number(left, counts, of_pods), _number(right, counts, of_pods)
            return first + second if op == "+" else first - second
    raise AssertionError(f"{node} is no number")
