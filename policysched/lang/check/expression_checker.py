"""The expression checker: the context of one expression, operand checks and type mismatches.

Each kind of syntax is checked by a function of its own module (`names`, `conditions`, `arithmetic`,
...), which `expressions` dispatches to. An error is reported once and yields None; the enclosing
expressions report nothing more.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from policysched.lang.check.dimensions import (
    DIMENSIONLESS,
    conversion_help,
    describe_type,
)
from policysched.lang.check.scope import DeclaredName, ExpressionContext, Scope, declared_here
from policysched.lang.ir import expr as e
from policysched.lang.ir.expr_analysis import type_of
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Type, TypeKind
from policysched.text import Span

CheckNode = Callable[["ExpressionChecker", s.Expression, Type | None], e.Expr | None]


@dataclass(slots=True)
class ExpressionChecker:
    """Checks one expression in one context."""

    scope: Scope
    context: ExpressionContext
    check_node: CheckNode

    def check(self, node: s.Expression, expected: Type | None) -> e.Expr | None:
        return self.check_node(self, node, expected)

    def in_context(self, context: ExpressionContext) -> "ExpressionChecker":
        """A checker for a part of the expression that has another context."""
        return ExpressionChecker(self.scope, context, self.check_node)

    def check_condition(self, node: s.Expression, keyword: str) -> e.Expr | None:
        expr = self.check(node, t.BOOL)
        if expr is None or type_of(expr).kind is TypeKind.BOOL:
            return expr
        have = describe_type(type_of(expr))
        self.scope.report("PS202", f"`{keyword}` expects a condition, found {have}", expr.span, label=have)
        return None

    def require_numeric(self, expr: e.Expr | None, operation: str) -> e.Expr | None:
        if expr is None:
            return None
        have = type_of(expr)
        if have.is_numeric:
            return expr
        self.scope.report(
            "PS202",
            f"{operation} expects a number, found {describe_type(have)}",
            expr.span,
            label=describe_type(have),
        )
        return None

    def check_operands(self, node: s.BinaryExpr) -> tuple[e.Expr, e.Expr] | None:
        """Both operands; a literal is read by the type of the other operand."""
        if self.needs_expected_type(node.left) and not self.needs_expected_type(node.right):
            right = self.check(node.right, None)
            left = None if right is None else self.check(node.left, type_of(right))
        else:
            left = self.check(node.left, None)
            right = (
                self.check(node.right, type_of(left))
                if left is not None
                else self.check_independent(node.right)
            )
        return None if left is None or right is None else (left, right)

    def check_independent(self, node: s.Expression) -> e.Expr | None:
        """Report the errors of an operand whose other operand has one. Literals have no type, so they are skipped."""
        if not self.needs_expected_type(node):
            self.check(node, None)
        return None

    def check_same_type(self, nodes: tuple[s.Expression, ...], expected: Type | None) -> list[e.Expr | None]:
        """Check all nodes; literals are read by the type of the first node that has one."""
        typed = {
            at: self.check(node, None) for at, node in enumerate(nodes) if not self.needs_expected_type(node)
        }
        for expr in typed.values():
            if expr is not None:
                expected = type_of(expr)
                break
        return [typed[at] if at in typed else self.check(node, expected) for at, node in enumerate(nodes)]

    def needs_expected_type(self, node: s.Expression) -> bool:
        """Whether the type of the expression depends on the expected type."""
        match node:
            case s.NumberLit():
                return True
            case s.NameExpr(name=name):
                return name not in self.scope.names and name not in self.scope.broken_names and name != "now"
            case s.UnaryExpr(op="-", operand=operand):
                return self.needs_expected_type(operand)
            case s.BinaryExpr(op="+" | "-" | "*" | "/", left=left, right=right):
                return self.needs_expected_type(left) and self.needs_expected_type(right)
            case s.ElseExpr(value=value, fallback=fallback):
                return self.needs_expected_type(value) and self.needs_expected_type(fallback)
            case s.IfExpr(then=then, otherwise=otherwise):
                return self.needs_expected_type(then) and self.needs_expected_type(otherwise)
            case s.CallExpr(function=s.Identifier(text="min" | "max" | "clamp" | "abs"), args=args):
                return all(self.needs_expected_type(arg) for arg in args)
            case _:
                return False

    def report_not_readable(
        self, span: Span, what: str, declared: DeclaredName | None = None
    ) -> e.Expr | None:
        """Report a read that the context does not allow."""
        self.scope.report(
            "PS220",
            f"{self.context.description} cannot read {what}",
            span,
            label="not available here",
            related=() if declared is None else (declared_here(declared.span),),
        )
        return None

    def report_incompatible(self, node: s.BinaryExpr, verb: str, left: Type, right: Type) -> e.Expr | None:
        """Report operands whose types do not match."""
        numeric = left.is_numeric and right.is_numeric
        self.scope.report(
            "PS204" if numeric else "PS202",
            f"{describe_type(left)} cannot be {verb} {describe_type(right)}",
            node.span,
            label=f"{left.as_required()} {node.op} {right.as_required()}",
            help=_quoted_number(node, left, right) or ("" if numeric else conversion_help(left, right)),
        )
        return None


_NUMBER_TEXT = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:%|[A-Za-z]+)?\Z")


def _quoted_number(node: s.BinaryExpr, left: Type, right: Type) -> str:
    """A help line for a number or a truth value in quotes; empty for other operands."""
    for literal, other in ((node.right, left), (node.left, right)):
        if not isinstance(literal, s.StringLit):
            continue
        if other.is_numeric and _NUMBER_TEXT.match(literal.value):
            return f"write `{literal.value}` without quotes"
        if other.kind is TypeKind.BOOL and literal.value.lower() in ("true", "false"):
            return f"write `{literal.value.lower()}` without quotes"
    return ""


def conform(scope: Scope, expr: e.Expr, wanted: Type) -> e.Expr | None:
    """The expression if it has the type (plain numbers are converted); None after a diagnostic."""
    have = type_of(expr)
    if have.kind is wanted.kind:
        if have.kind is TypeKind.LIST and have.element != wanted.element:
            return report_type_mismatch(scope, expr, wanted)
        return expr
    if wanted.kind in (TypeKind.FLOAT, TypeKind.RATIO) and have.kind in DIMENSIONLESS:
        if isinstance(expr, e.Const):
            return e.Const(float(cast(float, expr.value)), wanted, expr.span)
        return expr
    return report_type_mismatch(scope, expr, wanted)


def report_type_mismatch(scope: Scope, expr: e.Expr, wanted: Type) -> e.Expr | None:
    """Report an expression of the wrong type."""
    have = type_of(expr)
    code = "PS204" if have.is_numeric and wanted.is_numeric else "PS202"
    scope.report(
        code,
        f"expected {describe_type(wanted)}, found {describe_type(have)}",
        expr.span,
        label=describe_type(have),
    )
    return None
