"""Reading JSON into values: small readers that say what is wrong, and one place where that becomes `Malformed`."""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

from policysched.kube.decode.errors import Malformed
from policysched.kube.decode.object_schemas import NAMED_OBJECT_SCHEMA, OBJECT_SCHEMAS
from policysched.kube.decode.pod_resources import InvalidField
from policysched.kube.decode.schema import first_violation
from policysched.model.quantity import parse_whole_units
from policysched.text.sanitize import sanitize_line

Json = Mapping[str, Any]
Value = TypeVar("Value")


def decode_object(kind: str, obj: Json, read: Callable[[Json], Value]) -> Value:
    """The value. Raises Malformed with the object's name and the place of the fault."""
    try:
        return read(obj)
    # RecursionError: a list nested deeper than Python prints stands where a text should.
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        require_schema(kind, obj)
        field = error.field if isinstance(error, InvalidField) else "(object)"
        raise Malformed(kind, object_name(obj), field, str(error)) from error


def require_schema(kind: str, obj: Json) -> None:
    """Lay an object that no API server has checked beside the shape of its kind. Raises Malformed."""
    found = first_violation(OBJECT_SCHEMAS.get(kind, NAMED_OBJECT_SCHEMA), obj)
    if found is not None:
        raise Malformed(kind, object_name(obj), found.field, found.why)


def object_name(obj: Any) -> str:
    """`namespace/name`, or what of it there is: for words about an object that may be malformed."""
    meta = obj.get("metadata") if isinstance(obj, Mapping) else None
    meta = meta if isinstance(meta, Mapping) else {}
    namespace, name = (sanitize_line(meta[part]) if meta.get(part) else "" for part in ("namespace", "name"))
    own = name or "(without a name)"
    return f"{namespace}/{own}" if namespace else own


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def string_map(value: Any, field: str) -> Mapping[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise InvalidField(field, "is not a map of strings")
    return value


def size_bytes(quantity: Any, field: str) -> int:
    """A quantity of storage."""
    written = quantity if isinstance(quantity, str) else str(quantity)
    try:
        return parse_whole_units(written)
    except ValueError as error:
        raise InvalidField(field, str(error)) from error


def resource_version(meta: Json) -> int:
    """The resourceVersion as a number; 0 in a file, and where it is none and tells nothing."""
    written = str(meta.get("resourceVersion") or "")
    return int(written) if written.isascii() and written.isdigit() else 0


def time_ns(value: Any) -> int:
    """RFC 3339 to ns since 1970; 0 where there is none (a manifest from a file)."""
    return 0 if value is None else _parse_time_ns(str(value))


_TIME_NS_MAX = 2**62
"""In the year 2116. Later times, and Go's zero time in the year 1, are not what 64 bits of nanoseconds hold, nor a difference of two."""


@lru_cache(maxsize=4096)
def _parse_time_ns(written: str) -> int:
    return min(max(0, round(datetime.fromisoformat(written).timestamp()) * 10**9), _TIME_NS_MAX)
