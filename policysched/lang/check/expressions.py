"""From syntax to typed expressions: names resolved, literals read by the type that is expected of them.

A mistake is reported where it stands and yields None, and what contains it says nothing more. What may be missing and
what is constant are later passes (`flow`, `lang.ir.constant_folding`).
"""

from policysched.lang.check.aggregates import aggregate
from policysched.lang.check.amounts import amount, names_a_resource
from policysched.lang.check.arithmetic import minus, product, sum_or_difference
from policysched.lang.check.attributes import attribute
from policysched.lang.check.choices import conditional, otherwise
from policysched.lang.check.conditions import comparison, has, junction, negation
from policysched.lang.check.dimensions import describe
from policysched.lang.check.elements import element, is_element, over_elements
from policysched.lang.check.functions import call, count_pods
from policysched.lang.check.limits import within_limits
from policysched.lang.check.lists import list_literal, membership
from policysched.lang.check.literals import number
from policysched.lang.check.names import bare_name
from policysched.lang.check.reading import Reader, conform
from policysched.lang.check.scope import Place, Scope
from policysched.lang.ir import expr as e
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Kind, Type


def read(scope: Scope, node: s.Expression, place: Place, expected: Type | None = None) -> e.Expr | None:
    """A whole expression, with its limits. `expected` only helps to read literals; `conform` demands a type."""
    return Reader(scope, place, _read_node).read(node, expected) if within_limits(scope, node) else None


def read_condition(scope: Scope, node: s.Expression, place: Place) -> e.Expr | None:
    found = read(scope, node, place, t.BOOL)
    if found is None or e.type_of(found).kind is Kind.BOOL:
        return found
    scope.report(
        "PS202",
        f"this is {describe(e.type_of(found))}, and {place.word} must be true or false",
        found.span,
        label=describe(e.type_of(found)),
        help="compare it with something, such as `== 1`",
    )
    return None


def read_as(scope: Scope, node: s.Expression, place: Place, wanted: Type) -> e.Expr | None:
    """An expression of just this type (a plain number may stand for another kind of plain number)."""
    found = read(scope, node, place, wanted)
    return None if found is None else conform(scope, found, wanted)


def _read_node(reader: Reader, node: s.Expression, expected: Type | None) -> e.Expr | None:
    match node:
        case s.NumberLit():
            return number(reader.scope, node, expected)
        case s.StringLit(value=value, span=span):
            return e.Const(value, t.STRING, span)
        case s.BoolLit(value=value, span=span):
            return e.Const(value, t.BOOL, span)
        case s.ListLit():
            return list_literal(reader, node, None if expected is None else expected.element)
        case s.Bare():
            return bare_name(reader, node, expected)
        case s.Attribute() if is_element(reader, node):
            return element(reader, node)
        case s.Attribute():
            if names_a_resource(reader.scope, node, reader.place):
                return amount(reader.scope, node, reader.place)
            return attribute(reader.scope, node, reader.place)
        case s.Unary(op="not"):
            return negation(reader, node)
        case s.Unary():
            return minus(reader, node, expected)
        case s.Binary(op="and" | "or"):
            return junction(reader, node)
        case s.Binary(op="in" | "not in"):
            return membership(reader, node)
        case s.Binary(op="==" | "!=" | "<" | "<=" | ">" | ">="):
            return comparison(reader, node)
        case s.Binary(op="+" | "-"):
            return sum_or_difference(reader, node, expected)
        case s.Binary():
            return product(reader, node, expected)
        case s.ElseExpr():
            return otherwise(reader, node, expected)
        case s.IfExpr():
            return conditional(reader, node, expected)
        case s.HasExpr():
            return has(reader, node)
        case s.CallExpr():
            return call(reader, node, expected)
        case s.AggregateExpr():
            return aggregate(reader, node, expected)
        case s.CountExpr():
            return count_pods(reader, node)
        case s.FoldExpr():
            return over_elements(reader, node)
