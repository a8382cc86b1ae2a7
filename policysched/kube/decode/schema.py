"""Schemas of decoded objects, which locate and describe a malformed field.

Decoders do not check objects first: the API server has validated what it stores, and objects are many. Only when a
decoder fails is the object checked against its schema. Objects from files, which are not validated, are checked before
decoding. `null` counts as absent. Fields that no decoder reads are not checked.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from policysched.text.quote_value import quote_value


@dataclass(frozen=True, slots=True)
class SchemaViolation:
    """`field` is a path such as `spec.taints[0].effect`; `why` completes the sentence."""

    field: str
    reason: str


@dataclass(frozen=True, slots=True)
class ScalarSchema:
    """A single value. `expected` follows "expected" in the message."""

    expected: str
    is_valid: Callable[[Any], bool]

    def violation(self, value: Any) -> SchemaViolation | None:
        """The first violation. Its path begins at `value`, as in `.spec.taints[0]`. The other schemas have the same method."""
        return None if self.is_valid(value) else _unexpected(value, self.expected)


@dataclass(frozen=True, slots=True)
class ListSchema:
    item: "Schema"

    def violation(self, value: Any) -> SchemaViolation | None:
        if not isinstance(value, list | tuple):
            return _unexpected(value, "a list")
        violation_of = self.item.violation
        for index, item in enumerate(value):
            if (violation := violation_of(item)) is not None:
                return _inside(f"[{index}]", violation)
        return None


@dataclass(frozen=True, slots=True)
class MapSchema:
    """Any keys."""

    value: "Schema"

    def violation(self, value: Any) -> SchemaViolation | None:
        if not isinstance(value, dict | Mapping):
            return _unexpected(value, "a map")
        violation_of = self.value.violation
        for key, item in value.items():
            if not isinstance(key, str):
                return SchemaViolation("", f"has the key {quote_value(key)}; keys must be strings")
            if (violation := violation_of(item)) is not None:
                return _inside(f".{key}", violation)
        return None


@dataclass(frozen=True, slots=True)
class ObjectSchema:
    required: Mapping[str, "Schema"]
    optional: Mapping[str, "Schema"]

    def violation(self, value: Any) -> SchemaViolation | None:
        if not isinstance(value, dict | Mapping):
            return _unexpected(value, "a map")
        for key, child in self.required.items():
            if (item := value.get(key)) is None:
                return SchemaViolation(f".{key}", "is missing")
            if (violation := child.violation(item)) is not None:
                return _inside(f".{key}", violation)
        for key, child in self.optional.items():
            item = value.get(key)
            if item is not None and (violation := child.violation(item)) is not None:
                return _inside(f".{key}", violation)
        return None


Schema = ScalarSchema | ListSchema | MapSchema | ObjectSchema


def first_violation(schema: Schema, value: Any) -> SchemaViolation | None:
    """The first violation, in the order of the schema."""
    violation = schema.violation(value)
    return violation and SchemaViolation(violation.field.removeprefix(".") or "(object)", violation.reason)


def enum_of(*texts: str) -> ScalarSchema:
    return ScalarSchema(" or ".join(f"`{text}`" for text in texts), lambda value: value in texts)


def _integer(bits: int) -> ScalarSchema:
    limit = 2 ** (bits - 1)
    return ScalarSchema(
        f"an integer of at most {bits} bits",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit,
    )


def _is_time(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError):
        return False
    return True


TEXT = ScalarSchema("a string", lambda value: isinstance(value, str))
BOOLEAN = ScalarSchema("true or false", lambda value: isinstance(value, bool))
INT32, INT64 = _integer(32), _integer(64)
TIME = ScalarSchema("a time such as 2026-01-31T12:00:00Z", _is_time)
QUANTITY = ScalarSchema(
    "a quantity such as `250m` or `1.5Gi`",
    lambda value: isinstance(value, str | int | float) and not isinstance(value, bool),
)
TEXTS, TEXT_MAP, QUANTITIES = ListSchema(TEXT), MapSchema(TEXT), MapSchema(QUANTITY)


def object_of(required: Mapping[str, Schema] | None = None, /, **optional: Schema) -> ObjectSchema:
    return ObjectSchema(required or {}, optional)


def _inside(step: str, violation: SchemaViolation) -> SchemaViolation:
    return SchemaViolation(step + violation.field, violation.reason)


def _unexpected(value: Any, expected: str) -> SchemaViolation:
    return SchemaViolation("", f"is {quote_value(value)}, expected {expected}")
