"""The types of the language, and how their values are held at run time.

The dimension is part of the type, so `cpu + bytes` is an error at check time. A value is held as an exact int64
wherever Kubernetes counts in whole numbers, as float64 where it measures.
"""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a value is. The value of each member is the type's name in a policy."""

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
    MAP = "map"  # labels and the like; only indexed, never a value of its own


QOS_CLASSES = ("BestEffort", "Burstable", "Guaranteed")

_HELD_AS_FLOAT = frozenset({Kind.FLOAT, Kind.BANDWIDTH, Kind.RATIO})
_NUMERIC = frozenset(
    {Kind.INT, Kind.FLOAT, Kind.CPU, Kind.BYTES, Kind.BANDWIDTH, Kind.RATIO, Kind.DURATION, Kind.TIMESTAMP}
)


@dataclass(frozen=True, slots=True)
class Type:
    """A kind, whether a value may be absent, and for a list (or map) what it holds."""

    kind: Kind
    optional: bool = False
    element: "Type | None" = None
    record: "Record | None" = None

    @property
    def numeric(self) -> bool:
        return self.kind in _NUMERIC

    @property
    def held_as_float(self) -> bool:
        return self.kind in _HELD_AS_FLOAT

    @property
    def ordered(self) -> bool:
        """Whether `<` means anything: numbers and QoS classes, not strings (use `rank`)."""
        return self.numeric or self.kind is Kind.QOS

    def present(self) -> "Type":
        return Type(self.kind, False, self.element, self.record)

    def absent_allowed(self) -> "Type":
        return Type(self.kind, True, self.element, self.record)

    def __str__(self) -> str:
        name = f"list<{self.element}>" if self.kind is Kind.LIST else self.kind.value
        if self.record is not None:
            name = self.record.name
        return f"{name}?" if self.optional else name


@dataclass(frozen=True, slots=True)
class RecordField:
    """`key` is what JSON calls it. Absent: `default` where there is one, missing if `type.optional`, else the whole text
    is invalid. `unit` as of an input."""

    name: str
    type: Type
    key: str
    unit: str | None
    default: bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Record:
    """Of what the elements of a list consist. A value of it is a tuple, field by field, None for what is missing."""

    name: str
    fields: tuple[RecordField, ...]


BOOL = Type(Kind.BOOL)
INT = Type(Kind.INT)
FLOAT = Type(Kind.FLOAT)
STRING = Type(Kind.STRING)
CPU = Type(Kind.CPU)
BYTES = Type(Kind.BYTES)
BANDWIDTH = Type(Kind.BANDWIDTH)
RATIO = Type(Kind.RATIO)
DURATION = Type(Kind.DURATION)
TIMESTAMP = Type(Kind.TIMESTAMP)
QOS = Type(Kind.QOS)

FLOAT64_MAX = 1.7976931348623157e308
