"""The wire format of protobuf: messages as field numbers and raw values. What they mean, the caller knows."""

from collections.abc import Iterator
from typing import Any

_FIXED_BYTES = {1: 8, 5: 4}


def wire_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and raw values: integers, or the bytes of other fields. Raises ValueError or IndexError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        elif kind in _FIXED_BYTES:
            length = _FIXED_BYTES[kind]
        else:
            raise ValueError(f"wire type {kind} at {at}, which no field has")
        if at + length > len(data):
            raise ValueError(f"a field of {length} bytes at {at} of {len(data)}")
        yield tag >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
