"""From syntax to typed expressions: resolves names and reads literals by the expected type.

An error is reported once and yields None; the enclosing expressions report nothing more. Absent values
and constants are handled later (`presence`, `lang.ir.constant_folding`).
"""

from policysched.lang.check.aggregates import check_aggregate
from policysched.lang.check.arithmetic import check_minus, check_product, check_sum
from policysched.lang.check.attributes import check_attribute, report_unquoted_resource
from policysched.lang.check.condition_lints import lint_conditions
from policysched.lang.check.conditions import check_and_or, check_comparison, check_has, check_not
from policysched.lang.check.dimensions import (
    common_type,
    describe_type,
    same_dimension,
)
from policysched.lang.check.elements import check_fold, check_record_field, is_record_field
from policysched.lang.check.expression_checker import ExpressionChecker, conform
from policysched.lang.check.functions import check_call
from policysched.lang.check.limits import check_limits
from policysched.lang.check.lists import check_list_literal, check_membership
from policysched.lang.check.literals import check_number
from policysched.lang.check.names import check_age, check_name
from policysched.lang.check.pod_totals import check_pod_total
from policysched.lang.check.resource_amounts import check_resource_amount, is_resource_amount
from policysched.lang.check.scope import ExpressionContext, Scope
from policysched.lang.ir import expr as e
from policysched.lang.ir.expr_analysis import is_floating, type_of
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Type, TypeKind


def check_expression(
    scope: Scope, node: s.Expression, context: ExpressionContext, expected: Type | None = None
) -> e.Expr | None:
    """A whole expression, with its limits. `expected` only guides literals; `conform` requires a type."""
    if not check_limits(scope, node):
        return None
    expr = ExpressionChecker(scope, context, _check_node).check(node, expected)
    if expr is not None:
        lint_conditions(scope, expr)
    return expr


def check_condition(scope: Scope, node: s.Expression, context: ExpressionContext) -> e.Expr | None:
    expr = check_expression(scope, node, context, t.BOOL)
    if expr is None or type_of(expr).kind is TypeKind.BOOL:
        return expr
    scope.report(
        "PS202",
        f"expected a condition, found {describe_type(type_of(expr))}",
        expr.span,
        label=describe_type(type_of(expr)),
        help='compare it with a value, for example `== "true"`'
        if type_of(expr).kind is TypeKind.STRING
        else "compare it with a value, for example `== 1`",
    )
    return None


def check_expression_as(
    scope: Scope, node: s.Expression, context: ExpressionContext, wanted: Type
) -> e.Expr | None:
    """An expression of the given type; plain numbers are interchangeable."""
    expr = check_expression(scope, node, context, wanted)
    return None if expr is None else conform(scope, expr, wanted)


def _check_node(checker: ExpressionChecker, node: s.Expression, expected: Type | None) -> e.Expr | None:
    match node:
        case s.NumberLit():
            return check_number(checker.scope, node, expected)
        case s.StringLit(value=value, span=span):
            return e.Const(value, t.STRING, span)
        case s.BoolLit(value=value, span=span):
            return e.Const(value, t.BOOL, span)
        case s.ListLit():
            return check_list_literal(checker, node, None if expected is None else expected.element)
        case s.NameExpr():
            return check_name(checker, node, expected)
        case s.AttributeExpr() if is_record_field(checker, node):
            return check_record_field(checker, node)
        case s.AttributeExpr(owner="other" | "victim", path=(s.PathPart(text="age"),)):
            return check_age(checker, node)
        case s.AttributeExpr():
            if is_resource_amount(checker.scope, node, checker.context):
                return check_resource_amount(checker.scope, node, checker.context)
            return check_attribute(checker.scope, node, checker.context)
        case s.UnaryExpr(op="not"):
            return check_not(checker, node)
        case s.UnaryExpr():
            return check_minus(checker, node, expected)
        case s.BinaryExpr(op="and" | "or"):
            return check_and_or(checker, node)
        case s.BinaryExpr(op="in" | "not in"):
            return check_membership(checker, node)
        case s.BinaryExpr(op="==" | "!=" | "<" | "<=" | ">" | ">="):
            return check_comparison(checker, node)
        case s.BinaryExpr(op="+" | "-"):
            return check_sum(checker, node, expected)
        case s.BinaryExpr() if report_unquoted_resource(checker.scope, node):
            return None
        case s.BinaryExpr():
            return check_product(checker, node, expected)
        case s.ElseExpr():
            return _check_else(checker, node, expected)
        case s.IfExpr():
            return _check_if(checker, node, expected)
        case s.HasExpr():
            return check_has(checker, node)
        case s.CallExpr():
            return check_call(checker, node, expected)
        case s.AggregateExpr():
            return check_aggregate(checker, node, expected)
        case s.PodTotalExpr():
            return check_pod_total(checker, node)
        case s.ListFoldExpr():
            return check_fold(checker, node)


def _check_else(checker: ExpressionChecker, node: s.ElseExpr, expected: Type | None) -> e.Expr | None:
    value = checker.check(node.value, expected)
    if value is None:
        checker.check_independent(node.fallback)
        return None
    fallback = checker.check(node.fallback, type_of(value).as_required())
    if fallback is None:
        return None
    left, right = type_of(value), type_of(fallback)
    if not same_dimension(left, right) or left.kind is TypeKind.LIST:
        checker.scope.report(
            "PS204" if left.is_numeric and right.is_numeric else "PS202",
            f"expected {describe_type(left)} after `else`, found {describe_type(right)}",
            fallback.span,
            label=f"expected {describe_type(left)}",
            help='the message of a filter is its last clause: `says "text"`'
            if isinstance(node.fallback, s.StringLit)
            else "",
        )
        return None
    floating = is_floating(value) or is_floating(fallback)
    result = common_type([left, right])
    return e.Else(value, fallback, result if left.is_numeric else left.as_required(), floating, node.span)


def _check_if(checker: ExpressionChecker, node: s.IfExpr, expected: Type | None) -> e.Expr | None:
    condition = checker.check_condition(node.condition, "if")
    then, other = checker.check_same_type((node.then, node.otherwise), expected)
    if condition is None or then is None or other is None:
        return None
    left, right = type_of(then), type_of(other)
    if left.kind is TypeKind.LIST or not same_dimension(left, right):
        if left.kind is TypeKind.LIST:
            message, label = "an `if` cannot yield a list", "not allowed"
        else:
            message = f"`then` yields {describe_type(left)}, but `else` yields {describe_type(right)}"
            label = f"expected {describe_type(left)}"
        checker.scope.report(
            "PS204" if left.is_numeric and right.is_numeric else "PS202",
            message,
            other.span,
            label=label,
        )
        return None
    floating = is_floating(then) or is_floating(other)
    result = common_type([left, right]) if left.is_numeric else left.as_required()
    return e.If(condition, then, other, result, floating, node.span)
