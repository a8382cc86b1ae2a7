"""Lists in expressions: literals and `in`."""

from typing import cast

from policysched.lang.check.dimensions import describe_type, same_dimension
from policysched.lang.check.expression_checker import ExpressionChecker, conform
from policysched.lang.ir import expr as e
from policysched.lang.ir.expr_analysis import type_of
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Type, TypeKind


def check_membership(checker: ExpressionChecker, node: s.BinaryExpr) -> e.Expr | None:
    options: e.Expr | None
    match node.right:
        case s.AttributeExpr(owner=owner, path=(s.PathPart(text="labels" | "annotations" as keys),)) if (
            isinstance(node.left, s.StringLit)
        ):
            operator = "has" if node.op == "in" else "not has"
            checker.scope.report(
                "PS211",
                f"`{owner}.{keys}` is a map and needs a key",
                node.right.span,
                label="missing key",
                help=f"write `{operator} {owner}.{keys}[{node.left.span.text}]`",
            )
            return None
    if isinstance(node.right, s.ListLit):
        item = checker.check(node.left, None)
        options = None
        if item is not None:
            options = check_list_literal(checker, node.right, type_of(item).as_required())
    else:
        options = checker.check(node.right, None)
        expected = None if options is None else type_of(options).element
        item = checker.check(node.left, expected)
    if item is None or options is None:
        return None
    options_type = type_of(options)
    if options_type.kind is not TypeKind.LIST or options_type.element is None:
        checker.scope.report(
            "PS202",
            f"`in` expects a list on the right, found {describe_type(options_type)}",
            options.span,
            label=describe_type(options_type),
            help='for example `["a", "b"]`',
        )
        return None
    if not same_dimension(type_of(item), options_type.element):
        return checker.report_incompatible(node, "in", type_of(item), options_type)
    expr = e.In(item, options, node.span)
    return expr if node.op == "in" else e.Not(expr, node.span)


def check_list_literal(checker: ExpressionChecker, node: s.ListLit, element: Type | None) -> e.Expr | None:
    """A list of constants of one type: the expected type, or that of the first item."""
    items: list[e.Const] = []
    broken = False
    for written in node.items:
        expr = checker.check(written, element)
        if expr is None:
            broken = True
            continue
        if not isinstance(expr, e.Const) or isinstance(expr.value, tuple):
            checker.scope.report("PS221", "list items must be constants", expr.span, label="not a constant")
            broken = True
            continue
        if element is None:
            element = expr.type
        conformed = _conform_item(checker, expr, element)
        if conformed is None:
            broken = True
        else:
            items.append(conformed)
    if broken:
        return None
    values = tuple(item.value for item in items if not isinstance(item.value, tuple))
    return e.Const(values, Type(TypeKind.LIST, element=element or t.STRING), node.span)


def _conform_item(checker: ExpressionChecker, expr: e.Const, element: Type) -> e.Const | None:
    if same_dimension(expr.type, element) and expr.type.kind is not element.kind:
        value = float(cast(float, expr.value)) if element.is_float64 else expr.value
        return e.Const(value, expr.type if expr.type.kind is TypeKind.FLOAT else element, expr.span)
    return cast(e.Const | None, conform(checker.scope, expr, element.as_required()))
