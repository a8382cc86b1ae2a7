"""Responses of Prometheus: valid vectors, and one kind of error for everything else."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysched.metric_sources.poll_status import PollError
from policysched.metric_sources.prometheus import _join_batch, _JoinedSeries
from policysched.metric_sources.prometheus_response import parse_response, parse_series
from policysched.metric_sources.series_join import SeriesJoiner
from tests.metric_sources.builders import node_at, vector


def test_a_vector_has_labels_values_and_the_evaluation_time() -> None:
    answer = parse_response(vector(({"instance": "a"}, 12.5), ({"instance": "b"}, "NaN"), at_s=7.5))

    first = parse_series(answer.series[0])
    assert first is not None
    assert (first.labels, first.value, first.evaluated_s) == ({"instance": "a"}, 12.5, 7.5)
    second = parse_series(answer.series[1])
    assert second is not None and second.value != second.value


def test_warnings_are_kept_in_one_line_each() -> None:
    answer = parse_response(vector(warnings=["store\n10.0.0.1 unavailable", 7]))

    assert answer.warnings == ("store 10.0.0.1 unavailable", "7")


def test_a_warning_nested_too_deeply_to_print_is_shown_as_a_list() -> None:
    deep = b"[" * 1015 + b"]" * 1015

    answer = parse_response(vector(warnings=["?"]).replace(b'"?"', deep))

    assert answer.warnings == ("a list",)


def success(kind: object, result: object) -> bytes:
    return orjson.dumps({"status": "success", "data": {"resultType": kind, "result": result}})


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b"<html>502 Bad Gateway</html>", "malformed", "not JSON"),
        (b"", "malformed", "not JSON"),
        (b'{"status":"success","data":{"resultType":"vec', "malformed", "not JSON"),
        (b"\xff\xfe", "malformed", "not JSON"),
        (b"[" * 10_000, "malformed", "not JSON"),
        (b"[]", "malformed", "not a Prometheus API response"),
        (b'{"status":"success"}', "malformed", "not a Prometheus API response"),
        (success("vector", {}), "malformed", "not a Prometheus API response"),
        (success(["vector"], []), "malformed", "not a Prometheus API response"),
        (
            success("scalar", [1, "2"]),
            "wrong_type",
            "a scalar, not one value per series; wrap it in vector(...)",
        ),
        (success("matrix", []), "wrong_type", "a matrix"),
        (success("string", [1, "x"]), "wrong_type", "a string"),
        (
            b'{"status":"error","errorType":"bad_data","error":"parse error"}',
            "query",
            "bad_data: parse error",
        ),
        (b'{"status":"error"}', "query", "does not have status `success`"),
        (b"{}", "query", "does not have status `success`"),
    ],
)
def test_a_response_that_is_not_a_vector_is_an_error_of_its_kind(body: bytes, kind: str, words: str) -> None:
    with pytest.raises(PollError) as error:
        parse_response(body)

    assert error.value.kind == kind
    assert words in str(error.value)


@pytest.mark.parametrize(
    "series",
    [
        None,
        [],
        {},
        {"metric": {}},
        {"metric": {}, "value": []},
        {"metric": {}, "value": [1]},
        {"metric": {}, "value": [1, 2]},
        {"metric": {}, "value": ["1", "2"]},
        {"metric": {}, "value": [1, "much"]},
        {"metric": {}, "value": [1, ""]},
        {"metric": "a", "value": [1, "2"]},
        {"metric": {}, "histogram": [1, {"count": "2"}]},
    ],
)
def test_a_series_without_a_single_number_is_rejected(series: Any) -> None:
    assert parse_series(series) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["metric", "value", "status", "data", "instance"]) | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def test_any_series_are_parsed_without_an_exception() -> None:
    parsed = 0

    @given(st.lists(JSON, max_size=6), JSON)
    def search(series: list[Any], warnings: Any) -> None:
        nonlocal parsed
        body = {"status": "success", "data": {"resultType": "vector", "result": series}, "warnings": warnings}
        joiner, joined = SeriesJoiner("instance"), _JoinedSeries()
        joiner.update_nodes({(node := node_at("a")).name: node})
        try:
            answer = parse_response(orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS))
        except (PollError, TypeError):  # a server cannot send what orjson cannot write
            return

        _join_batch(answer.series, joiner, joined)

        assert len(joined.values) <= 1
        assert joined.unreadable + joined.unmatched <= len(series)
        parsed += bool(series)

    search()
    assert parsed > 10, "nearly all were refused whole"


@given(st.binary(max_size=64))
def test_any_bytes_are_parsed_or_raise_a_poll_error(body: bytes) -> None:
    with pytest.raises(PollError):
        parse_response(body)
