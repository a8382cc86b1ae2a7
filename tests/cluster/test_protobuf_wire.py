"""The wire format of protobuf: what is encoded is read, and anything else is an error."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysched.protobuf_wire import wire_fields

Field = tuple[int, int | bytes]
VALUES = st.integers(0, 2**64 - 1) | st.binary(max_size=300)


def varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def encoded(fields: Sequence[Field]) -> bytes:
    return b"".join(
        varint(number << 3) + varint(value)
        if isinstance(value, int)
        else varint(number << 3 | 2) + varint(len(value)) + value
        for number, value in fields
    )


@given(st.lists(st.tuples(st.integers(1, 2**29 - 1), VALUES), max_size=6))
def test_fields_are_read_in_their_order(fields: list[Field]) -> None:
    assert list(wire_fields(encoded(fields))) == fields


def test_fields_of_a_fixed_length_are_bytes() -> None:
    body = varint(1 << 3 | 1) + b"12345678" + varint(2 << 3 | 5) + b"1234"

    assert list(wire_fields(body)) == [(1, b"12345678"), (2, b"1234")]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\x0a\x05ab", "a field of 5 bytes"),
        (b"\x08", "an integer without an end"),
        (b"\x08" + b"\x80" * 12, "an integer of more than 10 bytes"),
        (b"\x0b", "wire type 3"),
        (varint(1 << 3 | 1) + b"1234", "a field of 8 bytes"),
    ],
)
def test_a_malformed_message_is_an_error(body: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        list(wire_fields(body))


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_an_error(body: bytes) -> None:
    try:
        list(wire_fields(body))
    except ValueError:
        return
