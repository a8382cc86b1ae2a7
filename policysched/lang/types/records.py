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

from policysched.lang.types.kinds import Kind, Record, RecordField, Type
from policysched.lang.types.units import Held, parse_value

TEXT_BYTES_MAX = 64 * 1024
ELEMENTS_MAX = 1000

RecordValue = tuple[bool | int | float | str | None, ...]
Value = Held | tuple[RecordValue, ...]


class NoValue(Enum):
    """Why a text that is there gives no value."""

    ABSENT = "absent"  # the path leads to nothing
    INVALID = "invalid"


class _Digits(str):
    """A number of JSON, as it is written."""


def held_value(text: str, type_: Type, unit: str | None, at: str | None) -> Value | NoValue:
    """What the text of a source is as the type says."""
    if at is None and type_.kind is not Kind.LIST:
        found = parse_value(text, type_, unit)
        return NoValue.INVALID if found is None else found
    return _from_json(text, type_, unit, at)


@lru_cache(maxsize=1024)
def _from_json(text: str, type_: Type, unit: str | None, at: str | None) -> Value | NoValue:
    if len(text.encode("utf-8", "surrogatepass")) > TEXT_BYTES_MAX:
        return NoValue.INVALID
    try:
        found = json.loads(text, parse_int=_Digits, parse_float=_Digits, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return NoValue.INVALID
    for name in [] if at is None else at.split("."):
        if not isinstance(found, dict):
            return NoValue.ABSENT if found is None else NoValue.INVALID
        found = found.get(name)
    if found is None:
        return NoValue.ABSENT
    if type_.kind is not Kind.LIST:
        value = _scalar(found, type_, unit)
        return NoValue.INVALID if value is None else value
    assert type_.element is not None and type_.element.record is not None, f"{type_} is no list of records"
    if not isinstance(found, list) or len(found) > ELEMENTS_MAX:
        return NoValue.INVALID
    elements = [_record(one, type_.element.record) for one in found]
    whole = tuple(one for one in elements if one is not None)
    return whole if len(whole) == len(elements) else NoValue.INVALID


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _record(found: Any, record: Record) -> RecordValue | None:
    """None where a field is not of its type, or not there and may not be absent."""
    if not isinstance(found, dict):
        return None
    values: list[bool | int | float | str | None] = []
    for field in record.fields:
        one = found.get(field.key)
        if one is None:
            if field.default is None and not field.type.optional:
                return None
            values.append(field.default)
            continue
        value = _field(one, field)
        if value is None:
            return None
        values.append(value)
    return tuple(values)


def _is_text(found: str) -> bool:
    """JSON can write half of a surrogate pair, `"\\ud800"`. UTF-8 has none, so no event could ever show it."""
    try:
        found.encode()
    except UnicodeEncodeError:
        return False
    return True


def _field(found: Any, field: RecordField) -> bool | int | float | str | None:
    return _scalar(found, field.type, field.unit)


def _scalar(found: Any, type_: Type, unit: str | None) -> bool | int | float | str | None:
    match found:
        case bool():
            return found if type_.kind is Kind.BOOL else None
        case _Digits():
            return None if type_.kind is Kind.STRING else parse_value(str(found), type_, unit)
        case str() if type_.kind is Kind.BOOL or not _is_text(found):
            return None
        case str():
            return parse_value(found, type_, unit)
        case _:
            return None
