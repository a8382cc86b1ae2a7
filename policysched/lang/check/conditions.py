"""Conditions in expressions: `not`, `and`, `or`, comparisons and `has`."""

from typing import cast

from policysched.lang.check.bare_numbers import lint_number_beside
from policysched.lang.check.dimensions import describe_type, same_dimension
from policysched.lang.check.expression_checker import ExpressionChecker
from policysched.lang.ir import expr as e
from policysched.lang.ir.expr_analysis import type_of
from policysched.lang.parse.foreign_words import NULL_WORDS
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import TypeKind


def check_not(checker: ExpressionChecker, node: s.UnaryExpr) -> e.Expr | None:
    operand = checker.check_condition(node.operand, "not")
    return None if operand is None else e.Not(operand, node.span)


def check_and_or(checker: ExpressionChecker, node: s.BinaryExpr) -> e.Expr | None:
    """The whole chain of one operator, without recursion into the left operand."""
    parts: list[s.Expression] = []
    left: s.Expression = node
    while isinstance(left, s.BinaryExpr) and left.op == node.op:
        parts.append(left.right)
        left = left.left
    parts.append(left)
    items = [checker.check_condition(part, node.op) for part in reversed(parts)]
    checked = tuple(item for item in items if item is not None)
    if len(checked) < len(items):
        return None
    return e.And(checked, node.span) if node.op == "and" else e.Or(checked, node.span)


def _report_null(checker: ExpressionChecker, node: s.BinaryExpr) -> bool:
    """Whether a value is compared with `null`; reports it."""
    null, value = (node.left, node.right) if isinstance(node.left, s.NameExpr) else (node.right, node.left)
    if not isinstance(null, s.NameExpr) or null.name not in NULL_WORDS or null.name in checker.scope.names:
        return False
    operator = "not has" if node.op == "==" else "has"
    checker.scope.report(
        "PS210",
        f"unknown name `{null.name}`",
        null.span,
        label="an absent value cannot be compared",
        help=f"write `{operator} {value.span.text}`",
    )
    return True


def check_comparison(checker: ExpressionChecker, node: s.BinaryExpr) -> e.Expr | None:
    if _report_null(checker, node):
        return None
    pair = checker.check_operands(node)
    if pair is None:
        return None
    left, right = pair
    left_type, right_type = type_of(left), type_of(right)
    op = cast(e.CompareOp, node.op)
    if not same_dimension(left_type, right_type):
        return checker.report_incompatible(node, "compared with", left_type, right_type)
    if left_type.kind is TypeKind.LIST:
        checker.scope.report("PS202", "lists cannot be compared", node.op_span, help="use `in`")
        return None
    if op not in ("==", "!=") and not left_type.is_ordered:
        have = describe_type(left_type)
        checker.scope.report(
            "PS202",
            f"`{op}` cannot compare {have}",
            node.op_span,
            help='use `rank(x, ["first", "second"])` to order strings'
            if left_type.kind is TypeKind.STRING
            else "",
        )
        return None
    if left == right and not checker.scope.names_parameter(node.span):
        checker.scope.report(
            "PS308",
            "both sides of the comparison are the same",
            node.span,
            label=f"always {str(op in ('==', '<=', '>=')).lower()}",
        )
    lint_number_beside(checker.scope, node.left, right)
    lint_number_beside(checker.scope, node.right, left)
    return e.Compare(op, left, right, node.span)


def check_has(checker: ExpressionChecker, node: s.HasExpr) -> e.Expr | None:
    target = checker.check(node.target, None)
    if target is None:
        return None
    absent = isinstance(target, e.MetricRef) or type_of(target).optional
    if isinstance(target, e.Attr | e.InputRef | e.MetricRef | e.ElementField) and absent:
        return e.Has(target, node.span)
    if isinstance(target, e.Attr | e.InputRef | e.ElementField | e.Const):
        checker.scope.report(
            "PS301",
            f"`{node.target.span.text}` is always present",
            node.span,
            label="always true",
            help="remove the `has`, or declare the input `optional` and without a default",
        )
        return e.Const(True, t.BOOL, node.span)
    checker.scope.report(
        "PS202", "`has` expects a label, an annotation, an optional input or a metric", target.span
    )
    return None
