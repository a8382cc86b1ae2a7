"""The wire format of protobuf, without a schema: https://protobuf.dev/programming-guides/encoding/."""

from collections.abc import Iterable, Iterator

VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
_FIXED_LENGTHS = {FIXED_64: 8, FIXED_32: 4}
_VARINT_BITS_MAX = 70


def wire_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The number and the raw value of each field: an integer of a varint, else the bytes. Raises ValueError if the message is
    malformed."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        wire_type = tag & 7
        if wire_type == VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if wire_type == BYTES:
            length, at = _varint(message, at)
        elif (length := _FIXED_LENGTHS.get(wire_type, 0)) == 0:
            raise ValueError(f"wire type {wire_type} at {at}, which no field has")
        if at + length > len(message):
            raise ValueError(f"a field of {length} bytes at {at} of {len(message)}")
        yield tag >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The value, and where it ends."""
    value = 0
    for shift in range(0, _VARINT_BITS_MAX, 7):
        if at >= len(message):
            raise ValueError(f"an integer without an end at {at}")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"an integer of more than {_VARINT_BITS_MAX // 7} bytes at {at}")


def wire_message(fields: Iterable[tuple[int, int | bytes]]) -> bytes:
    """The message of these fields: integers as varints, bytes with their length. Fields of a fixed length cannot be written."""
    parts = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            parts += _encoded(number << 3 | VARINT) + _encoded(value)
        else:
            parts += _encoded(number << 3 | BYTES) + _encoded(len(value)) + value
    return bytes(parts)


def _encoded(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
