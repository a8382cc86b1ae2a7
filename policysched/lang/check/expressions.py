"""From syntax to typed expressions: names resolved, literals read by the type that is expected of them.

A mistake is reported where it stands and yields None, and what contains it says nothing more. What may be missing and
what is constant are later passes (`flow`, `lang.ir.constant_folding`).
"""

from policysched.lang.check.aggregates import check_aggregate
from policysched.lang.check.arithmetic import check_minus, check_product, check_sum
from policysched.lang.check.attributes import check_attribute
from policysched.lang.check.conditionals import check_else, check_if
from policysched.lang.check.conditions import check_and_or, check_comparison, check_has, check_not
from policysched.lang.check.dimensions import describe_type
from policysched.lang.check.elements import check_fold, check_record_field, is_record_field
from policysched.lang.check.expression_checker import ExpressionChecker, conform
from policysched.lang.check.functions import check_call, check_count
from policysched.lang.check.limits import check_limits
from policysched.lang.check.lists import check_list_literal, check_membership
from policysched.lang.check.literals import check_number
from policysched.lang.check.names import check_name
from policysched.lang.check.resource_amounts import check_resource_amount, is_resource_amount
from policysched.lang.check.scope import ExpressionContext, Scope
from policysched.lang.ir import expr as e
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Type, TypeKind


def check_expression(
    scope: Scope, node: s.Expression, place: ExpressionContext, expected: Type | None = None
) -> e.Expr | None:
    """A whole expression, with its limits. `expected` only helps to read literals; `conform` demands a type."""
    return (
        ExpressionChecker(scope, place, _check_node).check(node, expected)
        if check_limits(scope, node)
        else None
    )


def check_condition(scope: Scope, node: s.Expression, place: ExpressionContext) -> e.Expr | None:
    found = check_expression(scope, node, place, t.BOOL)
    if found is None or e.type_of(found).kind is TypeKind.BOOL:
        return found
    scope.report(
        "PS202",
        f"this is {describe_type(e.type_of(found))}, and {place.description} must be true or false",
        found.span,
        label=describe_type(e.type_of(found)),
        help="compare it with something, such as `== 1`",
    )
    return None


def check_expression_as(
    scope: Scope, node: s.Expression, place: ExpressionContext, wanted: Type
) -> e.Expr | None:
    """An expression of just this type (a plain number may stand for another kind of plain number)."""
    found = check_expression(scope, node, place, wanted)
    return None if found is None else conform(scope, found, wanted)


def _check_node(reader: ExpressionChecker, node: s.Expression, expected: Type | None) -> e.Expr | None:
    match node:
        case s.NumberLit():
            return check_number(reader.scope, node, expected)
        case s.StringLit(value=value, span=span):
            return e.Const(value, t.STRING, span)
        case s.BoolLit(value=value, span=span):
            return e.Const(value, t.BOOL, span)
        case s.ListLit():
            return check_list_literal(reader, node, None if expected is None else expected.element)
        case s.NameExpr():
            return check_name(reader, node, expected)
        case s.AttributeExpr() if is_record_field(reader, node):
            return check_record_field(reader, node)
        case s.AttributeExpr():
            if is_resource_amount(reader.scope, node, reader.context):
                return check_resource_amount(reader.scope, node, reader.context)
            return check_attribute(reader.scope, node, reader.context)
        case s.UnaryExpr(op="not"):
            return check_not(reader, node)
        case s.UnaryExpr():
            return check_minus(reader, node, expected)
        case s.BinaryExpr(op="and" | "or"):
            return check_and_or(reader, node)
        case s.BinaryExpr(op="in" | "not in"):
            return check_membership(reader, node)
        case s.BinaryExpr(op="==" | "!=" | "<" | "<=" | ">" | ">="):
            return check_comparison(reader, node)
        case s.BinaryExpr(op="+" | "-"):
            return check_sum(reader, node, expected)
        case s.BinaryExpr():
            return check_product(reader, node, expected)
        case s.ElseExpr():
            return check_else(reader, node, expected)
        case s.IfExpr():
            return check_if(reader, node, expected)
        case s.HasExpr():
            return check_has(reader, node)
        case s.CallExpr():
            return check_call(reader, node, expected)
        case s.AggregateExpr():
            return check_aggregate(reader, node, expected)
        case s.CountExpr():
            return check_count(reader, node)
        case s.ListFoldExpr():
            return check_fold(reader, node)
