"""Numbers with units: in policies, in labels, and for people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Type, TypeKind
from policysched.lang.types.units import (
    SUFFIXES,
    UNITS,
    ParseFailure,
    format_value,
    parse_literal,
    parse_value,
)
from policysched.model.quantity import INT64_MAX, INT64_MIN

GI = 2**30
SECOND = 10**9


@pytest.mark.parametrize(
    ("text", "type_", "unit", "value"),
    [
        ("250m", t.CPU, None, 250),
        ("0.1", t.CPU, None, 100),
        ("0.0001", t.CPU, None, 1),  # rounded up, as Kubernetes rounds quantities
        ("2", t.CPU, "millicores", 2),
        ("1.5Gi", t.BYTES, None, 3 * GI // 2),
        ("1e3", t.BYTES, None, 1000),
        ("1k", t.BYTES, None, 1000),
        ("800Mbps", t.BANDWIDTH, None, 8e8),
        ("100MBps", t.BANDWIDTH, None, 8e8),
        ("1000", t.BANDWIDTH, "Mbit/s", 1e9),
        ("1Gbps", t.BANDWIDTH, "Mbit/s", 1e9),  # a suffix says more than the declared unit
        ("85%", t.RATIO, None, 0.85),
        ("0.85", t.RATIO, None, 0.85),
        ("5m", t.DURATION, None, 300 * SECOND),
        ("1.5", t.DURATION, "s", 3 * SECOND // 2),
        ("-3", t.INT, None, -3),
        ("007", t.INT, None, 7),
        ("+5", t.INT, None, 5),
        ("true", t.BOOL, None, True),
        ("Burstable", t.QOS, None, 1),
        ("", t.STRING, None, ""),
        ("1970-01-01T00:00:01Z", t.TIMESTAMP, None, SECOND),
        ("1970-01-01T01:00:00.5+01:00", t.TIMESTAMP, None, SECOND // 2),
        ("9223372036854775807", t.INT, None, INT64_MAX),
    ],
)
def test_a_text_of_the_type_is_read(text: str, type_: Type, unit: str | None, value: object) -> None:
    parsed = parse_value(text, type_, unit)

    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("eight", t.INT),
        ("1.0", t.INT),
        ("1e3", t.INT),
        ("٣", t.INT),  # a digit, but not one that Kubernetes reads
        ("", t.INT),
        (" 1", t.INT),
        ("9223372036854775808", t.INT),
        ("1" * 5000, t.INT),
        ("128m", t.BYTES),
        ("9Ei", t.BYTES),
        ("1e309", t.FLOAT),
        ("nan", t.FLOAT),
        ("inf", t.FLOAT),
        ("100", t.BANDWIDTH),
        ("5", t.DURATION),
        ("5min", t.DURATION),
        ("True", t.BOOL),
        ("guaranteed", t.QOS),
        ("2026-02-30T00:00:00Z", t.TIMESTAMP),
        ("2026-01-01", t.TIMESTAMP),
    ],
)
def test_a_text_that_is_not_of_the_type_is_invalid(text: str, type_: Type) -> None:
    assert parse_value(text, type_, None) is None


NUMBERS = st.from_regex(r"-?[0-9]{1,30}(\.[0-9]{1,4})?(m|Ki|Gi|s|h|%|Mbps)?", fullmatch=True)


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in TypeKind
        if kind not in (TypeKind.LIST, TypeKind.RECORD, TypeKind.MAP, TypeKind.STRING, TypeKind.BOOL)
    ],
)
def test_a_parsed_number_has_the_representation_of_its_type(kind: TypeKind) -> None:
    type_, parsed = Type(kind), 0

    @given(st.text(max_size=80) | NUMBERS | st.sampled_from(("Burstable", "2026-01-05T10:00:00Z", "3Mbps")))
    def search(text: str) -> None:
        nonlocal parsed
        value = parse_value(text, type_, None)
        if value is not None:
            parsed += 1
            assert isinstance(value, float) == type_.is_float64
            assert INT64_MIN <= value <= INT64_MAX or type_.is_float64

    search()
    assert parsed > 0, "no text was read as a value"


@given(st.integers(0, 10**15), st.sampled_from((t.CPU, t.INT)))
def test_a_formatted_value_parses_to_the_same_value(value: int, type_: Type) -> None:
    assert parse_value(format_value(value, type_), type_, None) == value


@pytest.mark.parametrize(
    ("value", "type_", "text"),
    [
        (812e6, t.BANDWIDTH, "812Mbps"),
        (0.0, t.BANDWIDTH, "0bps"),
        (3 * GI // 2, t.BYTES, "1.5Gi"),
        (250, t.CPU, "250m"),
        (2000, t.CPU, "2"),
        (5400 * SECOND, t.DURATION, "1h30m"),
        (-SECOND, t.DURATION, "-1s"),
        (0, t.DURATION, "0s"),
        (0.855, t.RATIO, "85.5%"),
        (2, t.QOS, "Guaranteed"),
        (True, t.BOOL, "true"),
        (("a", "b"), Type(TypeKind.LIST, element=t.STRING), "a, b"),
        (1_767_607_200 * SECOND, t.TIMESTAMP, "2026-01-05T10:00:00Z"),
        (INT64_MAX, t.TIMESTAMP, "2262-04-11T23:47:16Z"),
    ],
)
def test_values_are_formatted_in_readable_units(value: object, type_: Type, text: str) -> None:
    assert format_value(value, type_) == text


def test_a_literal_is_never_rounded() -> None:
    assert parse_literal("1.5", "Gi", TypeKind.BYTES) == 3 * GI // 2
    assert parse_literal("0.1", "Ki", TypeKind.BYTES) == ParseFailure("fine")
    assert parse_literal("9", "Ei", TypeKind.BYTES) == ParseFailure("large")
    assert parse_literal("5", "x", TypeKind.DURATION) == ParseFailure("suffix")


def test_every_unit_is_some_positive_number_of_held_units() -> None:
    for table in (*SUFFIXES.values(), *UNITS.values()):
        assert table
        assert min(table.values()) > 0


@pytest.mark.parametrize(
    ("text", "bits"), [("10M", 10e6), ("1G", 1e9), ("2Ki", 2048.0), ("500000", 500_000.0), ("3Mbps", 3e6)]
)
def test_a_bandwidth_with_a_unit_may_be_written_as_a_quantity(text: str, bits: float) -> None:
    assert parse_value(text, t.BANDWIDTH, "bit/s") == bits
    assert parse_value("10M", t.BANDWIDTH, None) is None
    assert parse_value("10M", t.DURATION, "s") is None


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("two\n0/9 nodes are available", "two 0/9 nodes are available"),
        ("\x1b[2Jgone\u202e\ud800", r"\x1b[2Jgone\u202e\ud800"),
        ("plain  text", "plain  text"),
        ("x" * 300, "x" * 199 + "…"),
    ],
)
def test_a_text_is_shown_on_one_line_with_control_characters_escaped(written: str, shown: str) -> None:
    assert format_value(written, t.STRING) == shown
    assert format_value((written, "b"), Type(TypeKind.LIST, element=t.STRING)) == f"{shown}, b"
