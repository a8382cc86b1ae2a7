"""Schemas of decoded objects, which locate and describe a malformed field.

Decoders do not check objects first: the API server has validated what it stores, and objects are many. Only when a
decoder fails is the object checked against its schema. Objects from files, which are not validated, are checked before
decoding. `null` counts as absent. Fields that no decoder reads are not checked.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from policysched.text.quote_value import quote_value


@dataclass(frozen=True, slots=True)
class ScalarSchema:
    """A single value. `expected` follows "expected" in the message."""

    expected: str
    is_valid: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class ListSchema:
    item: "Schema"


@dataclass(frozen=True, slots=True)
class MapSchema:
    """Any keys."""

    value: "Schema"


@dataclass(frozen=True, slots=True)
class ObjectSchema:
    required: Mapping[str, "Schema"]
    optional: Mapping[str, "Schema"]


Schema = ScalarSchema | ListSchema | MapSchema | ObjectSchema


@dataclass(frozen=True, slots=True)
class SchemaViolation:
    """`field` is a path such as `spec.taints[0].effect`; `why` completes the sentence."""

    field: str
    why: str


def first_violation(schema: Schema, value: Any) -> SchemaViolation | None:
    """The first violation, in the order of the schema."""
    return next(_violations(schema, value, ""), None)


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


def _violations(schema: Schema, value: Any, path: str) -> Iterator[SchemaViolation]:
    match schema:
        case ScalarSchema(expected, is_valid):
            if not is_valid(value):
                yield _violation(path, value, expected)
        case ListSchema(child):
            if not isinstance(value, list | tuple):
                yield _violation(path, value, "a list")
                return
            for index, item in enumerate(value):
                yield from _violations(child, item, f"{path}[{index}]")
        case MapSchema(child):
            if not isinstance(value, Mapping):
                yield _violation(path, value, "a map")
                return
            for key, item in value.items():
                if not isinstance(key, str):
                    yield SchemaViolation(path, f"has the key {quote_value(key)}; keys must be strings")
                else:
                    yield from _violations(child, item, f"{path}.{key}")
        case ObjectSchema(required, optional):
            if not isinstance(value, Mapping):
                yield _violation(path, value, "a map")
                return
            for key, child in required.items():
                yield from _field_violations(child, value.get(key), _join(path, key), missing=True)
            for key, child in optional.items():
                yield from _field_violations(child, value.get(key), _join(path, key), missing=False)


def _field_violations(schema: Schema, value: Any, path: str, *, missing: bool) -> Iterator[SchemaViolation]:
    if value is not None:
        yield from _violations(schema, value, path)
    elif missing:
        yield SchemaViolation(path, "is missing")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _violation(path: str, value: Any, expected: str) -> SchemaViolation:
    return SchemaViolation(path or "(object)", f"is {quote_value(value)}, expected {expected}")
