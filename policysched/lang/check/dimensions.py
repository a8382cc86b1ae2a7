"""Dimensions: which types can be compared and added, and the type of a sum, product or quotient."""

from collections.abc import Sequence

from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Type, TypeKind

DIMENSIONLESS = frozenset({TypeKind.INT, TypeKind.FLOAT, TypeKind.RATIO})

_DESCRIPTIONS = {
    TypeKind.BOOL: "a condition",
    TypeKind.INT: "a whole number",
    TypeKind.FLOAT: "a number",
    TypeKind.STRING: "a string",
    TypeKind.CPU: "a cpu amount",
    TypeKind.BYTES: "a size in bytes",
    TypeKind.BANDWIDTH: "a bandwidth",
    TypeKind.RATIO: "a ratio",
    TypeKind.DURATION: "a duration",
    TypeKind.TIMESTAMP: "a point in time",
    TypeKind.QOS: "a QoS class",
    TypeKind.LIST: "a list",
    TypeKind.RECORD: "a record",
    TypeKind.MAP: "a map",
}


def describe_type(type_: Type) -> str:
    """The type in words, for messages."""
    if type_.kind is TypeKind.LIST and type_.element is not None:
        return f"a list of {type_.element.as_required()}"
    return _DESCRIPTIONS[type_.kind]


def same_dimension(left: Type, right: Type) -> bool:
    """Whether two types can be compared and added: whole numbers, floats and ratios are all plain numbers."""
    return left.kind is right.kind or (left.kind in DIMENSIONLESS and right.kind in DIMENSIONLESS)


def conversion_help(left: Type, right: Type) -> str:
    if {left.kind, right.kind} == {TypeKind.STRING, TypeKind.QOS}:
        return "QoS classes are written without quotes: `Guaranteed`"
    if TypeKind.STRING in (left.kind, right.kind) and (left.is_numeric or right.is_numeric):
        wanted = left if left.is_numeric else right
        return f"a label is a string; parse it with `input NAME: {wanted.as_required()} = ...`"
    return ""


def common_type(kinds: Sequence[Type]) -> Type:
    """The common type of plain numbers: a float, unless all are of one kind."""
    if len({kind.kind for kind in kinds}) == 1:
        return kinds[0].as_required()
    return t.FLOAT


def sum_type(op: str, left: Type, right: Type) -> Type | None:
    match left.kind, right.kind:
        case TypeKind.TIMESTAMP, TypeKind.TIMESTAMP:
            return t.DURATION if op == "-" else None
        case TypeKind.TIMESTAMP, TypeKind.DURATION:
            return t.TIMESTAMP
        case TypeKind.DURATION, TypeKind.TIMESTAMP:
            return t.TIMESTAMP if op == "+" else None
    if not same_dimension(left, right):
        return None
    if TypeKind.RATIO in (left.kind, right.kind):
        return t.RATIO
    return common_type([left, right])


def product_type(op: str, left: Type, right: Type) -> Type | None:
    if TypeKind.TIMESTAMP in (left.kind, right.kind):
        return None
    plain_left, plain_right = left.kind in DIMENSIONLESS, right.kind in DIMENSIONLESS
    match op, plain_left, plain_right:
        case "*", True, True:
            return common_type([left, right])
        case "/", True, True:
            return t.RATIO if left.kind is right.kind else t.FLOAT
        case "*", True, False:
            return right.as_required()
        case _, False, True:
            return left.as_required()
        case "/", False, False:
            return t.RATIO if left.kind is right.kind else None
        case _:
            return None
