"""Responses of Prometheus: valid vectors, and one kind of error for everything else."""

import json
import re
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policysched.metric_sources import prometheus_response
from policysched.metric_sources.poll_status import PollError
from policysched.metric_sources.prometheus import _join_batch, _JoinedSeries
from policysched.metric_sources.prometheus_response import parse_response, parse_series
from policysched.metric_sources.series_join import SeriesJoiner
from tests.metric_sources.builders import node_at, vector


def test_a_vector_has_labels_values_and_the_evaluation_time() -> None:
    answer = parse_response(vector(({"instance": "a"}, 12.5), ({"instance": "b"}, "NaN"), at_s=7.5))

    first, second = map(parse_series, answer.series)
    assert first is not None
    assert (first.labels, first.value, first.evaluated_s) == ({"instance": "a"}, 12.5, 7.5)
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

        _join_batch(list(answer.series), joiner, joined)

        assert len(joined.values) <= 1
        assert joined.unreadable + joined.unmatched <= len(series)
        parsed += bool(series)

    search()
    assert parsed > 10, "nearly all were refused whole"


@given(st.binary(max_size=64))
def test_any_bytes_are_parsed_or_raise_a_poll_error(body: bytes) -> None:
    with pytest.raises(PollError):
        parse_response(body)


TRICKY = st.sampled_from(['},{"metric":', '}, {"value":[', '"result":[', "]}", "\\", "{", "é", "plain"])
LABELS = st.dictionaries(st.sampled_from(["metric", "value", "instance"]) | TRICKY, TRICKY, max_size=3)


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """Valid ones in various forms: with and without white space, the value first, warnings before or after the data."""
    series = [
        dict(draw(st.permutations([("metric", labels), ("value", [draw(st.integers(0, 9)), "1"])])))
        for labels in draw(st.lists(LABELS, max_size=12))
    ]
    data = dict(draw(st.permutations([("resultType", "vector"), ("result", series)])))
    parts = [("status", "success"), ("data", data), ("warnings", draw(st.lists(TRICKY, max_size=2)))]
    indent = draw(st.sampled_from([None, 0, 2]))
    return json.dumps(dict(draw(st.permutations(parts))), indent=indent).encode()


def chunks_of(size: int) -> Any:
    return patch.multiple(prometheus_response, LARGE_BYTES=1, CHUNK_BYTES=size)


def parsed(body: bytes) -> tuple[list[Any], tuple[str, ...]] | str:
    """A first response that is malformed only in its series raises the error while they are read."""
    try:
        answer = parse_response(body)
        return list(answer.series), answer.warnings
    except PollError as error:
        return error.kind


def compare_chunks_with_the_whole() -> None:
    cut = 0

    @settings(max_examples=300, derandomize=True)
    @given(responses(), st.integers(1, 40))
    def search(body: bytes, size: int) -> None:
        nonlocal cut
        whole = parsed(body)
        with chunks_of(size):
            assert parsed(body) == whole
            cut += len(prometheus_response._BETWEEN_SERIES.findall(body)) > 1

    search()
    assert cut > 50, "nearly no response had several series"


def test_a_response_in_chunks_has_the_series_of_the_whole() -> None:
    compare_chunks_with_the_whole()


def test_planted_cut_inside_a_string_is_detected() -> None:
    with (
        patch.object(prometheus_response, "_BETWEEN_SERIES", re.compile(rb"\}\s*,\s*(?=\{)")),
        pytest.raises(AssertionError),
    ):
        compare_chunks_with_the_whole()


@pytest.mark.parametrize("broken", [b'{"metric":{},"value":[1,"1"]', b'{"metric":{}}}', b"NaN", b"\xff"])
@pytest.mark.parametrize("at", [0, 3, 5])
def test_a_broken_series_of_a_large_response_is_an_error(broken: bytes, at: int) -> None:
    series = [b'{"metric":{"instance":"a"},"value":[1,"1"]}'] * 6
    series[at] = broken
    body = b'{"status":"success","data":{"resultType":"vector","result":[' + b",".join(series) + b"]}}"
    with chunks_of(1):
        assert parsed(body) == "malformed"


@pytest.mark.parametrize("where", ["a series", "before", "after", "no series", "no result"])
def test_a_large_response_without_series_to_cut_is_an_error(where: str) -> None:
    filler, result = "x" * prometheus_response.PART_BYTES_MAX, [{"metric": {"a": "b"}, "value": [1, "1"]}]
    body: dict[str, Any] = {"status": "success", "data": {"resultType": "vector", "result": result}}
    match where:
        case "a series":
            result[0]["metric"] = {"a": filler}
        case "before":
            body = {"warnings": [filler], **body}
        case "after":
            body |= {"warnings": [filler]}
        case "no series":
            body["data"]["result"] = [[]] * 600_000
        case _:
            del body["data"]["result"]
            body["data"]["x"] = filler
    assert parsed(orjson.dumps(body)) == "malformed"


def test_a_large_response_has_one_result() -> None:
    series = {"metric": {}, "value": [1, "1"]}
    body = {"x": {"result": []}, "status": "success", "data": {"resultType": "vector", "result": [series]}}
    with chunks_of(1):
        assert parsed(orjson.dumps(body)) == "malformed"


def test_a_chunk_of_a_large_response_is_parsed_as_its_series_are_read() -> None:
    """Which bounds the memory, and the time of one piece of work."""
    body = vector(*(({"instance": f"10.0.{i // 250}.{i % 250}:9100"}, i) for i in range(40_000)))
    loaded: list[int] = []

    def loads(text: bytes) -> Any:
        loaded.append(len(text))
        return orjson.loads(text)

    assert len(body) > 2 * prometheus_response.LARGE_BYTES
    with patch.object(prometheus_response, "_loads", loads):
        series = iter(parse_response(body).series)
        before = len(loaded)
        assert [next(series)["value"][1] for _ in range(3)] == ["0", "1", "2"]
        assert len(loaded) == before + 1
        assert 3 + sum(1 for _ in series) == 40_000
    assert max(loaded) < prometheus_response.CHUNK_BYTES * 1.1
