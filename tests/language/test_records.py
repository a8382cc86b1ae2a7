"""JSON read as typed values: whole, or not at all."""

import json
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysched.lang.types.kinds import (
    BOOL,
    BYTES,
    FLOAT,
    INT,
    STRING,
    RecordType,
    RecordTypeField,
    Type,
    TypeKind,
)
from policysched.lang.types.records import (
    JSON_TEXT_BYTES_MAX,
    LIST_ELEMENTS_MAX,
    NoValueReason,
    parse_typed_value,
)
from policysched.text.short_text_cache import SHORT_TEXT_MAX

CARD = RecordType(
    "card",
    (
        RecordTypeField("health", STRING, "health", None, None),
        RecordTypeField("memory", BYTES, "freeMemory", "MiB", None),
        RecordTypeField("clock", INT, "clock", None, 0),
        RecordTypeField("speed", FLOAT.as_optional(), "speed", None, None),
    ),
)
CARDS = Type(TypeKind.LIST, element=Type(TypeKind.RECORD, record=CARD))


def read(value: object, at: str | None = None) -> object:
    text = value if isinstance(value, str) else json.dumps(value)
    return parse_typed_value(text, CARDS, None, at)


def card(**more: object) -> dict[str, object]:
    return {"health": "Healthy", "freeMemory": 1024, **more}


def test_a_record_is_its_fields_in_their_order_by_the_names_that_json_has() -> None:
    elements = read([card(clock=5705, speed=0.5, unknown=[1]), card(freeMemory="2Gi", clock="7")])

    assert elements == (("Healthy", 2**30, 5705, 0.5), ("Healthy", 2**31, 7, None))


def test_an_absent_field_has_its_default_or_is_missing_or_makes_the_text_invalid() -> None:
    assert read([card(clock=None, speed=None)]) == (("Healthy", 2**30, 0, None),)
    assert read([card(), {"freeMemory": 1}]) is NoValueReason.INVALID


@pytest.mark.parametrize(
    "value",
    [
        "",
        "[",
        "cards",
        7,
        {"a": 1},
        [7],
        [[]],
        [card(health=1)],
        [card(health=True)],
        [card(freeMemory=True)],
        [card(freeMemory="much")],
        [card(clock=1.5)],
        [card(clock=2**63)],
        '[{"health": "x", "freeMemory": NaN}]',
        '[{"health": "\\ud800", "freeMemory": 1}]',
        '[{"health": "x", "freeMemory": 1e999999}]',
        [card()] * (LIST_ELEMENTS_MAX + 1),
        "[" * 100_000,
        '{"a": ' * 5_000 + "1" + "}" * 5_000,
        f'[{{"health": "{"x" * JSON_TEXT_BYTES_MAX}", "freeMemory": 1}}]',
        "1" * 5_000,
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_malformed_list_is_invalid_and_does_not_raise(value: object) -> None:
    assert read(value) is NoValueReason.INVALID


def test_a_path_leads_into_the_json_and_to_nothing_is_absent() -> None:
    whole = {"status": {"cardList": [card()], "cardNumber": 1, "ready": True, "name": "x", "memory": "2Gi"}}
    text = json.dumps(whole)

    assert read(whole, "status.cardList") == (("Healthy", 2**30, 0, None),)
    assert read(whole, "status.cards") is NoValueReason.ABSENT
    assert read(whole, "spec.cards") is NoValueReason.ABSENT
    assert read(whole, "status.cardNumber.x") is NoValueReason.INVALID
    assert parse_typed_value(text, INT, None, "status.cardNumber") == 1
    assert parse_typed_value(text, BOOL, None, "status.ready") is True
    assert parse_typed_value(text, STRING, None, "status.name") == "x"
    assert parse_typed_value(text, STRING, None, "status.cardNumber") is NoValueReason.INVALID
    assert parse_typed_value(text, BYTES, None, "status.memory") == 2**31
    assert parse_typed_value(text, BYTES, "MiB", "status.cardNumber") == 2**20


def test_digits_are_read_exactly() -> None:
    assert parse_typed_value('{"x": 0.1}', FLOAT, None, "x") == 0.1
    assert parse_typed_value('{"x": 9223372036854775807}', INT, None, "x") == 2**63 - 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(("health", "freeMemory", "clock", "a")), inner)
    ),
)


@given(JSON | st.text())
def test_no_json_and_no_text_raises_anything(value: object) -> None:
    for at in (None, "a", "health.a"):
        read(value, at)


@pytest.mark.parametrize(
    ("text", "value"),
    [('{"team": "\\ud83d\\ude00"}', "\U0001f600"), ('{"team": "\\ud83d"}', NoValueReason.INVALID)],
)
def test_half_of_a_surrogate_pair_is_invalid_text(text: str, value: object) -> None:
    assert parse_typed_value(text, STRING, None, "team") == value


def test_a_long_text_is_parsed_once_for_all_that_is_read_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = Mock(wraps=json.loads)
    monkeypatch.setattr(json, "loads", parse)
    text = json.dumps({"cards": [card()] * 500, "name": "a"})

    for _ in range(3):
        assert len(read(text, "cards")) == 500  # type: ignore[arg-type]
        assert parse_typed_value(text, STRING, None, "name") == "a"

    assert len(text) > SHORT_TEXT_MAX and parse.call_count == 1
    assert read(text, "cards") is read(text, "cards")
