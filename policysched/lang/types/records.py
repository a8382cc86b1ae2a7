"""JSON in a label, an annotation or a custom resource, read as typed values.

A path (`at`) picks a part of it; a list of objects becomes a tuple of records. Numbers are kept as the digits that stand in the
text until the type reads them, so nothing passes through a float on its way; a string is no number where a number
without a suffix is meant, and nothing else is converted either. A text that is too long, too deep or not what the type
says is invalid as a whole: half a list would be a wrong list.
"""

import json
from enum import Enum
from functools import lru_cache
from typing import Any

from policysched.lang.types.kinds import RecordType, RecordTypeField, Type, TypeKind
from policysched.lang.types.units import ScalarValue, parse_value

JSON_TEXT_BYTES_MAX = 64 * 1024
LIST_ELEMENTS_MAX = 1000

RecordValue = tuple[bool | int | float | str | None, ...]
TypedValue = ScalarValue | tuple[RecordValue, ...]


class NoValueReason(Enum):
    """Why a text that is there gives no value."""

    ABSENT = "absent"  # the path leads to nothing
    INVALID = "invalid"


class _JsonNumber(str):
    """A number of JSON, as it is written."""


def parse_typed_value(text: str, type_: Type, unit: str | None, at: str | None) -> TypedValue | NoValueReason:
    """What the text of a source is as the type says."""
    if at is None and type_.kind is not TypeKind.LIST:
        found = parse_value(text, type_, unit)
        return NoValueReason.INVALID if found is None else found
    return _parse_json(text, type_, unit, at)


@lru_cache(maxsize=1024)
def _parse_json(text: str, type_: Type, unit: str | None, at: str | None) -> TypedValue | NoValueReason:
    if len(text.encode("utf-8", "surrogatepass")) > JSON_TEXT_BYTES_MAX:
        return NoValueReason.INVALID
    try:
        found = json.loads(
            text, parse_int=_JsonNumber, parse_float=_JsonNumber, parse_constant=_reject_json_constant
        )
    except (ValueError, RecursionError):
        return NoValueReason.INVALID
    for name in [] if at is None else at.split("."):
        if not isinstance(found, dict):
            return NoValueReason.ABSENT if found is None else NoValueReason.INVALID
        found = found.get(name)
    if found is None:
        return NoValueReason.ABSENT
    if type_.kind is not TypeKind.LIST:
        value = _parse_scalar(found, type_, unit)
        return NoValueReason.INVALID if value is None else value
    assert type_.element is not None and type_.element.record is not None, f"{type_} is no list of records"
    if not isinstance(found, list) or len(found) > LIST_ELEMENTS_MAX:
        return NoValueReason.INVALID
    elements = [_parse_record(one, type_.element.record) for one in found]
    whole = tuple(one for one in elements if one is not None)
    return whole if len(whole) == len(elements) else NoValueReason.INVALID


def _reject_json_constant(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _parse_record(found: Any, record: RecordType) -> RecordValue | None:
    """None where a field is not of its type, or not there and may not be absent."""
    if not isinstance(found, dict):
        return None
    values: list[bool | int | float | str | None] = []
    for field in record.fields:
        one = found.get(field.json_key)
        if one is None:
            if field.default is None and not field.type.optional:
                return None
            values.append(field.default)
            continue
        value = _parse_field(one, field)
        if value is None:
            return None
        values.append(value)
    return tuple(values)


def _is_utf8_encodable(found: str) -> bool:
    """JSON can write half of a surrogate pair, `"\\ud800"`. UTF-8 has none, so no event could ever show it."""
    try:
        found.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parse_field(found: Any, field: RecordTypeField) -> bool | int | float | str | None:
    return _parse_scalar(found, field.type, field.unit)


def _parse_scalar(found: Any, type_: Type, unit: str | None) -> bool | int | float | str | None:
    match found:
        case bool():
            return found if type_.kind is TypeKind.BOOL else None
        case _JsonNumber():
            return None if type_.kind is TypeKind.STRING else parse_value(str(found), type_, unit)
        case str() if type_.kind is TypeKind.BOOL or not _is_utf8_encodable(found):
            return None
        case str():
            return parse_value(found, type_, unit)
        case _:
            return None
