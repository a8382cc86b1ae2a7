"""Dimensions: which types can be compared and added, and what a sum, a product or a quotient of two is."""

from collections.abc import Sequence

from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Kind, Type

DIMENSIONLESS = frozenset({Kind.INT, Kind.FLOAT, Kind.RATIO})

_WORDS = {
    Kind.BOOL: "a condition",
    Kind.INT: "a whole number",
    Kind.FLOAT: "a number",
    Kind.STRING: "a string",
    Kind.CPU: "a cpu amount",
    Kind.BYTES: "a size in bytes",
    Kind.BANDWIDTH: "a bandwidth",
    Kind.RATIO: "a ratio",
    Kind.DURATION: "a duration",
    Kind.TIMESTAMP: "a point in time",
    Kind.QOS: "a QoS class",
    Kind.LIST: "a list",
    Kind.RECORD: "a record",
    Kind.MAP: "a map",
}


def describe(type_: Type) -> str:
    """The type in words, for messages."""
    if type_.kind is Kind.LIST and type_.element is not None:
        return f"a list of {type_.element.present()}"
    return _WORDS[type_.kind]


def same_dimension(left: Type, right: Type) -> bool:
    """Whether two types can be compared and added: whole numbers, floats and ratios are all plain numbers."""
    return left.kind is right.kind or (left.kind in DIMENSIONLESS and right.kind in DIMENSIONLESS)


def conversion_help(left: Type, right: Type) -> str:
    if {left.kind, right.kind} == {Kind.STRING, Kind.QOS}:
        return "QoS classes are written without quotes: `Guaranteed`"
    if Kind.STRING in (left.kind, right.kind) and (left.numeric or right.numeric):
        wanted = left if left.numeric else right
        return f"a label is a string; declare an input of it, `input NAME: {wanted.present()} = ...`"
    return ""


def common(kinds: Sequence[Type]) -> Type:
    """The type of a value that can be any of these plain numbers: a ratio among numbers is a float."""
    seen = {kind.kind for kind in kinds}
    if len(seen) == 1:
        return kinds[0].present()
    return t.FLOAT


def sum_type(op: str, left: Type, right: Type) -> Type | None:
    match left.kind, right.kind:
        case Kind.TIMESTAMP, Kind.TIMESTAMP:
            return t.DURATION if op == "-" else None
        case Kind.TIMESTAMP, Kind.DURATION:
            return t.TIMESTAMP
        case Kind.DURATION, Kind.TIMESTAMP:
            return t.TIMESTAMP if op == "+" else None
    if not same_dimension(left, right):
        return None
    if Kind.RATIO in (left.kind, right.kind):
        return t.RATIO
    return common([left, right])


def product_type(op: str, left: Type, right: Type) -> Type | None:
    if Kind.TIMESTAMP in (left.kind, right.kind):
        return None
    plain_left, plain_right = left.kind in DIMENSIONLESS, right.kind in DIMENSIONLESS
    match op, plain_left, plain_right:
        case "*", True, True:
            return common([left, right])
        case "/", True, True:
            return t.RATIO if left.kind is right.kind else t.FLOAT
        case "*", True, False:
            return right.present()
        case _, False, True:
            return left.present()
        case "/", False, False:
            return t.RATIO if left.kind is right.kind else None
        case _:
            return None
