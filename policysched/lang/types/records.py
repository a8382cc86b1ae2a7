"""Typed values from JSON in labels, annotations and custom resources.

A path (`at`) selects a part of the JSON; a list of objects becomes a tuple of records. Numbers keep their digits until
they are parsed by type, so no value passes through a float. Nothing is converted implicitly. A text that is too long, too
deeply nested or not of the type is invalid as a whole, since a partial list would be wrong.
"""

import json
from enum import Enum
from functools import lru_cache
from typing import Any

from policysched.lang.types.kinds import RecordType, Type, TypeKind
from policysched.lang.types.units import ScalarValue, parse_value
from policysched.text.short_text_cache import cache_short_texts

JSON_TEXT_BYTES_MAX = 64 * 1024
LIST_ELEMENTS_MAX = 1000
_LONG_TEXTS_KEPT, _VALUES_KEPT = 4, 8
"""Of a pod that is decided about: several expressions read several parts of one annotation."""

_AS_WRITTEN = str.encode
"""A number of JSON is bytes, which no other value is. A class of our own takes twenty times as long to make."""

RecordValue = tuple[bool | int | float | str | None, ...]
TypedValue = ScalarValue | tuple[RecordValue, ...]


class NoValueReason(Enum):
    """Why a text yields no value."""

    ABSENT = "absent"  # there is nothing at the path
    INVALID = "invalid"


def parse_typed_value(text: str, type_: Type, unit: str | None, at: str | None) -> TypedValue | NoValueReason:
    """The value of a source text, or the reason why there is none."""
    if at is None and type_.kind is not TypeKind.LIST:
        value = parse_value(text, type_, unit)
        return NoValueReason.INVALID if value is None else value
    return _parse_json(text, type_, unit, at)


@cache_short_texts(maxsize=1024)
@lru_cache(_VALUES_KEPT)
def _parse_json(text: str, type_: Type, unit: str | None, at: str | None) -> TypedValue | NoValueReason:
    node = _json_tree(text)
    if node is NoValueReason.INVALID:
        return NoValueReason.INVALID
    for name in [] if at is None else at.split("."):
        if not isinstance(node, dict):
            return NoValueReason.ABSENT if node is None else NoValueReason.INVALID
        node = node.get(name)
    if node is None:
        return NoValueReason.ABSENT
    if type_.kind is not TypeKind.LIST:
        value = _parse_scalar(node, type_, unit)
        return NoValueReason.INVALID if value is None else value
    assert type_.element is not None and type_.element.record is not None, f"{type_} is not a list of records"
    if not isinstance(node, list) or len(node) > LIST_ELEMENTS_MAX:
        return NoValueReason.INVALID
    elements = [_parse_record(element, type_.element.record) for element in node]
    records = tuple(element for element in elements if element is not None)
    return records if len(records) == len(elements) else NoValueReason.INVALID


@lru_cache(_LONG_TEXTS_KEPT)
def _json_tree(text: str) -> Any:
    """Read-only, as callers share it."""
    if len(text.encode("utf-8", "surrogatepass")) > JSON_TEXT_BYTES_MAX:
        return NoValueReason.INVALID
    try:
        return json.loads(
            text, parse_int=_AS_WRITTEN, parse_float=_AS_WRITTEN, parse_constant=_reject_json_constant
        )
    except (ValueError, RecursionError):
        return NoValueReason.INVALID


def _reject_json_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def _parse_record(node: Any, record: RecordType) -> RecordValue | None:
    """None where a field is not of its type, or is absent but required."""
    if not isinstance(node, dict):
        return None
    values: list[bool | int | float | str | None] = []
    for field in record.fields:
        element = node.get(field.json_key)
        if element is None:
            if field.default is None and not field.type.optional:
                return None
            values.append(field.default)
            continue
        value = _parse_scalar(element, field.type, field.unit)
        if value is None:
            return None
        values.append(value)
    return tuple(values)


def _is_utf8_encodable(text: str) -> bool:
    """JSON can contain half of a surrogate pair, `"\\ud800"`, which cannot be encoded in an event."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parse_scalar(node: Any, type_: Type, unit: str | None) -> bool | int | float | str | None:
    match node:
        case bool():
            return node if type_.kind is TypeKind.BOOL else None
        case bytes():
            return None if type_.kind is TypeKind.STRING else parse_value(node.decode(), type_, unit)
        case str() if type_.kind is TypeKind.BOOL or not _is_utf8_encodable(node):
            return None
        case str():
            return parse_value(node, type_, unit)
        case _:
            return None
