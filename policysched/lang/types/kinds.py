"""The types of the language and the representation of their values.

The dimension is part of the type, so `cpu + bytes` is a type error. Quantities that Kubernetes counts are an exact int64,
measured ones a float64.
"""

from dataclasses import dataclass
from enum import Enum


class TypeKind(Enum):
    """The kind of a type. The value of each member is the type's name in a policy."""

    BOOL = "bool"
    INT = "int"  # int64
    FLOAT = "float"  # float64
    STRING = "string"
    CPU = "cpu"  # int64 thousandths of a core
    BYTES = "bytes"  # int64
    BANDWIDTH = "bandwidth"  # float64 bit/s
    RATIO = "ratio"  # float64, 0.85 for 85%
    DURATION = "duration"  # int64 ns
    TIMESTAMP = "timestamp"  # int64 ns since 1970
    QOS = "qos"  # int: BestEffort 0 < Burstable 1 < Guaranteed 2
    LIST = "list"
    RECORD = "record"  # a tuple of its fields' values; only an element of a list
    MAP = "map"  # such as labels; can only be indexed


QOS_CLASSES = ("BestEffort", "Burstable", "Guaranteed")

_FLOAT64_KINDS = frozenset({TypeKind.FLOAT, TypeKind.BANDWIDTH, TypeKind.RATIO})
_NUMERIC_KINDS = frozenset(
    {
        TypeKind.INT,
        TypeKind.FLOAT,
        TypeKind.CPU,
        TypeKind.BYTES,
        TypeKind.BANDWIDTH,
        TypeKind.RATIO,
        TypeKind.DURATION,
        TypeKind.TIMESTAMP,
    }
)


@dataclass(frozen=True, slots=True)
class Type:
    """A kind, whether a value can be missing, and the type of the elements of a list or map."""

    kind: TypeKind
    optional: bool = False
    element: "Type | None" = None
    record: "RecordType | None" = None

    @property
    def is_numeric(self) -> bool:
        return self.kind in _NUMERIC_KINDS

    @property
    def is_float64(self) -> bool:
        return self.kind in _FLOAT64_KINDS

    @property
    def is_ordered(self) -> bool:
        """Whether `<` is defined: for numbers and QoS classes, not for strings (use `rank`)."""
        return self.is_numeric or self.kind is TypeKind.QOS

    def as_required(self) -> "Type":
        return Type(self.kind, False, self.element, self.record)

    def as_optional(self) -> "Type":
        return Type(self.kind, True, self.element, self.record)

    def __str__(self) -> str:
        name = f"list<{self.element}>" if self.kind is TypeKind.LIST else self.kind.value
        if self.record is not None:
            name = self.record.name
        return f"{name}?" if self.optional else name


@dataclass(frozen=True, slots=True)
class RecordTypeField:
    """A field that is absent in JSON gets `default` if there is one, is missing if `type.optional`, and otherwise makes
    the whole text invalid. `unit` as for an input."""

    name: str
    type: Type
    json_key: str
    unit: str | None
    default: bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class RecordType:
    """The type of a list's elements. A value is a tuple of its fields, None for a missing one."""

    name: str
    fields: tuple[RecordTypeField, ...]


BOOL = Type(TypeKind.BOOL)
INT = Type(TypeKind.INT)
FLOAT = Type(TypeKind.FLOAT)
STRING = Type(TypeKind.STRING)
CPU = Type(TypeKind.CPU)
BYTES = Type(TypeKind.BYTES)
BANDWIDTH = Type(TypeKind.BANDWIDTH)
RATIO = Type(TypeKind.RATIO)
DURATION = Type(TypeKind.DURATION)
TIMESTAMP = Type(TypeKind.TIMESTAMP)
QOS = Type(TypeKind.QOS)

FLOAT64_MAX = 1.7976931348623157e308
