"""Conditions in expressions: `not`, `and`, `or`, comparisons, and `has`."""

from typing import cast

from policysched.lang.check.dimensions import describe, same_dimension
from policysched.lang.check.reading import Reader
from policysched.lang.ir import expr as e
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Kind


def negation(reader: Reader, node: s.Unary) -> e.Expr | None:
    operand = reader.condition(node.operand, "not")
    return None if operand is None else e.Not(operand, node.span)


def junction(reader: Reader, node: s.Binary) -> e.Expr | None:
    """The whole chain of one operator, without recursion into its left side."""
    parts: list[s.Expression] = []
    left: s.Expression = node
    while isinstance(left, s.Binary) and left.op == node.op:
        parts.append(left.right)
        left = left.left
    parts.append(left)
    items = [reader.condition(part, node.op) for part in reversed(parts)]
    known = tuple(item for item in items if item is not None)
    if len(known) < len(items):
        return None
    return e.And(known, node.span) if node.op == "and" else e.Or(known, node.span)


def comparison(reader: Reader, node: s.Binary) -> e.Expr | None:
    pair = reader.pair(node)
    if pair is None:
        return None
    left, right = pair
    left_type, right_type = e.type_of(left), e.type_of(right)
    op = cast(e.CompareOp, node.op)
    if not same_dimension(left_type, right_type):
        return reader.unlike(node, "compared with", left_type, right_type)
    if left_type.kind is Kind.LIST:
        reader.scope.report("PS202", "a list cannot be compared", node.op_span, help="ask with `in`")
        return None
    if op not in ("==", "!=") and not left_type.ordered:
        have = describe(left_type)
        reader.scope.report(
            "PS202",
            f"`{op}` needs an order, and {have} has none",
            node.op_span,
            help='`rank(x, ["first", "second"])` orders strings' if left_type.kind is Kind.STRING else "",
        )
        return None
    if left == right and not reader.scope.set_elsewhere(node.span):
        reader.scope.report(
            "PS308",
            "both sides are the same",
            node.span,
            label=f"always {str(op in ('==', '<=', '>=')).lower()}",
        )
    return e.Compare(op, left, right, node.span)


def has(reader: Reader, node: s.HasExpr) -> e.Expr | None:
    target = reader.read(node.target, None)
    if target is None:
        return None
    absent = isinstance(target, e.MetricRef) or e.type_of(target).optional
    if isinstance(target, e.Attr | e.InputRef | e.MetricRef | e.Element) and absent:
        return e.Has(target, node.span)
    if isinstance(target, e.Attr | e.InputRef | e.Element | e.Const):
        reader.scope.report(
            "PS301",
            f"`{node.target.span.text}` is always there",
            node.span,
            label="always true",
            help="leave the `has` out, or declare the input `optional` and without a default",
        )
        return e.Const(True, t.BOOL, node.span)
    reader.scope.report(
        "PS202", "`has` asks for a label, an annotation, an optional input or a metric", target.span
    )
    return None
