"""What the readers expect of an object, field by field, so that what does not fit is said at its place and in words.

The readers themselves do not ask, for the API server has checked what it stores, and there are many objects. Only where
one of them stumbles is the object laid beside its shape; and objects from files, which nobody has checked, are laid
beside it before they are read. `null` is as good as absent. Fields that no reader looks at are not looked at here.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from policysched.text.quote_value import quote_value


@dataclass(frozen=True, slots=True)
class ScalarSchema:
    """A single value. `expected` follow "should be"."""

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
    """`field` is a path such as `spec.taints[0].effect`; `why` continues it to a sentence."""

    field: str
    why: str


def first_violation(shape: Schema, value: Any) -> SchemaViolation | None:
    """The first field that is not as it should be, in the order of the shape."""
    return next(_violations(shape, value, ""), None)


def enum_of(*texts: str) -> ScalarSchema:
    return ScalarSchema(" or ".join(f"`{one}`" for one in texts), lambda value: value in texts)


def _integer(bits: int) -> ScalarSchema:
    most = 2 ** (bits - 1)
    return ScalarSchema(
        f"a whole number of at most {bits} bits",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and -most <= value < most,
    )


def _is_time(value: Any) -> bool:
    if isinstance(value, datetime):  # YAML reads one that is not quoted
        return True
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


def object_of(needed: Mapping[str, Schema] | None = None, /, **free: Schema) -> ObjectSchema:
    return ObjectSchema(needed or {}, free)


def _violations(shape: Schema, value: Any, path: str) -> Iterator[SchemaViolation]:
    match shape:
        case ScalarSchema(words, fits):
            if not fits(value):
                yield _violation(path, value, words)
        case ListSchema(each):
            if not isinstance(value, list | tuple):
                yield _violation(path, value, "a list")
                return
            for index, one in enumerate(value):
                yield from _violations(each, one, f"{path}[{index}]")
        case MapSchema(each):
            if not isinstance(value, Mapping):
                yield _violation(path, value, "a map")
                return
            for key, one in value.items():
                if not isinstance(key, str):
                    yield SchemaViolation(path, f"has the key {quote_value(key)}; keys must be strings")
                else:
                    yield from _violations(each, one, f"{path}.{key}")
        case ObjectSchema(needed, free):
            if not isinstance(value, Mapping):
                yield _violation(path, value, "a map")
                return
            for key, each in needed.items():
                yield from _field_violations(each, value.get(key), _join(path, key), missing=True)
            for key, each in free.items():
                yield from _field_violations(each, value.get(key), _join(path, key), missing=False)


def _field_violations(shape: Schema, value: Any, path: str, *, missing: bool) -> Iterator[SchemaViolation]:
    if value is not None:
        yield from _violations(shape, value, path)
    elif missing:
        yield SchemaViolation(path, "is missing")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _violation(path: str, value: Any, words: str) -> SchemaViolation:
    return SchemaViolation(path or "(object)", f"is {quote_value(value)}, expected {words}")
