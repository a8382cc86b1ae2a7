"""Decoders of single fields, and `decode_object`, which turns their errors into `MalformedObject`."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

from policysched.kube.decode.errors import InvalidField, MalformedObject, OverLimit
from policysched.kube.decode.object_schemas import NAMED_OBJECT_SCHEMA, OBJECT_SCHEMAS
from policysched.kube.decode.schema import first_violation
from policysched.model.quantity import parse_whole_units
from policysched.text.sanitize import sanitize_line

Json = Mapping[str, Any]
Value = TypeVar("Value")


def decode_object(kind: str, obj: Json, read: Callable[[Json], Value]) -> Value:
    """The decoded value. Raises MalformedObject with the object's name and the field at fault."""
    try:
        return read(obj)
    except OverLimit as error:
        raise MalformedObject(kind, object_name(obj), error.field, str(error)) from error
    # RecursionError: a deeply nested list in place of a string cannot be printed.
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        require_schema(kind, obj)
        field = error.field if isinstance(error, InvalidField) else "(object)"
        raise MalformedObject(kind, object_name(obj), field, str(error)) from error


def require_schema(kind: str, obj: Json) -> None:
    """Check an object that no API server has validated against the schema of its kind. Raises MalformedObject."""
    violation = first_violation(OBJECT_SCHEMAS.get(kind, NAMED_OBJECT_SCHEMA), obj)
    if violation is not None:
        raise MalformedObject(kind, object_name(obj), violation.field, violation.reason)


def object_name(obj: Any) -> str:
    """`namespace/name`, as far as present: for messages about an object that may be malformed."""
    meta = obj.get("metadata") if isinstance(obj, Mapping) else None
    meta = meta if isinstance(meta, Mapping) else {}
    namespace, name = (sanitize_line(meta[part]) if meta.get(part) else "" for part in ("namespace", "name"))
    object_name = name or "(without a name)"
    return f"{namespace}/{object_name}" if namespace else object_name


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def string_map(value: Any, field: str) -> Mapping[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise InvalidField(field, "is not a map of strings")
    return value


def size_bytes(quantity: Any, field: str) -> int:
    """A quantity of storage. Raises InvalidField."""
    quantity_text = quantity if isinstance(quantity, str) else str(quantity)
    try:
        return parse_whole_units(quantity_text)
    except ValueError as error:
        raise InvalidField(field, str(error)) from error


def resource_version(meta: Json) -> int:
    """The resourceVersion as a number; 0 if it is absent (a file) or not a number."""
    return version_number(str(meta.get("resourceVersion") or ""))


def version_number(version: str) -> int:
    """Versions of one resource compare as numbers (KEP-5504); 0 for anything else."""
    return int(version) if version.isascii() and version.isdigit() else 0


def time_ns(value: Any) -> int:
    """RFC 3339 to ns since 1970, from 0 to `_TIME_NS_MAX`; 0 if absent (a manifest in a file). Raises ValueError."""
    return 0 if value is None else _parse_time_ns(str(value))


_TIME_NS_MAX = 2**62
"""In the year 2116. Later times, Go's zero time (year 1), or differences of such times exceed 64 bits of nanoseconds."""


_ODD_YEAR = re.compile(r"(?:(-[0-9]{3,}|0000)|[1-9][0-9]{4,})-[0-9]{2}-[0-9]{2}T")
"""A year that Go writes and Python cannot read."""


@lru_cache(maxsize=4096)
def _parse_time_ns(time: str) -> int:
    if odd := _ODD_YEAR.match(time):
        return 0 if odd[1] else _TIME_NS_MAX
    return min(max(0, round(datetime.fromisoformat(time).timestamp()) * 10**9), _TIME_NS_MAX)
