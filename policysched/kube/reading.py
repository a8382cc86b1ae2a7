"""Reading JSON into values: small readers that say what is wrong, and one place where that becomes `Malformed`."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from policysched.kube.malformed import Malformed
from policysched.kube.requests import BadQuantity
from policysched.text.quantity import whole_units

Json = Mapping[str, Any]
Value = TypeVar("Value")


def reading(kind: str, obj: Json, read: Callable[[Json], Value]) -> Value:
    """The value. Raises Malformed with the object's name and the place of the fault."""
    try:
        return read(obj)
    except BadQuantity as error:
        raise Malformed(kind, object_name(obj), error.field, str(error)) from error
    except KeyError as error:
        raise Malformed(kind, object_name(obj), str(error.args[0]), "is missing") from error
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Malformed(
            kind, object_name(obj), "(object)", f"is not shaped as the API says: {error}"
        ) from error


def object_name(obj: Any) -> str:
    """`namespace/name`, or what of it there is: for words about an object that may be malformed."""
    meta = obj.get("metadata") if isinstance(obj, Mapping) else None
    meta = meta if isinstance(meta, Mapping) else {}
    own = str(meta.get("name") or "(without a name)")
    return f"{meta['namespace']}/{own}" if meta.get("namespace") else own


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def strings(value: Any, field: str) -> Mapping[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise BadQuantity(field, "is not a map of strings")
    return value


def size_bytes(quantity: Any, field: str) -> int:
    """A quantity of storage."""
    written = quantity if isinstance(quantity, str) else str(quantity)
    try:
        return whole_units(written)
    except ValueError as error:
        raise BadQuantity(field, str(error)) from error


def version(meta: Json) -> int:
    """The resourceVersion as a number; 0 in a file."""
    return int(meta.get("resourceVersion") or 0)


def time_ns(value: Any) -> int:
    """RFC 3339 to ns since 1970; 0 where there is none (a manifest from a file)."""
    if value is None:
        return 0
    return round(datetime.fromisoformat(str(value)).timestamp()) * 10**9
