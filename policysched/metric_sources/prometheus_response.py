"""Parses Prometheus' response to an instant query. Gateways and proxies respond in its place, so nothing is assumed.

Form: https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries

A large response is parsed in chunks of whole series, as they are read: 16 MiB in one piece would take the event loop for
half a second, and 700 MB.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from policysched.metric_sources.poll_status import PollError
from policysched.text.sanitize import sanitize_line

_WARNINGS_MAX = 5
LARGE_BYTES = 512 * 1024
CHUNK_BYTES = 256 * 1024
PART_BYTES_MAX = 1024 * 1024
"""Of a series in a large response, and of what is before or after the series."""
_RESULT = re.compile(rb'"result"\s*:\s*\[\s*')
_BETWEEN_SERIES = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:metric|value)"\s*:)')
"""In valid JSON it is in no string: the quote would end that string, and a name cannot follow."""
_SEPARATOR = b", \t\r\n"


@dataclass(frozen=True, slots=True)
class InstantVector:
    """Unparsed series with one value each, for `parse_series`. `warnings`: the response may be incomplete. Of a large
    response, iterating may raise PollError."""

    series: Iterable[Any]
    warnings: tuple[str, ...] = ()


class SeriesValue(NamedTuple):
    """A series' labels and value, and the time of evaluation on the server's clock (s since 1970). A tuple, since each poll
    creates thousands."""

    labels: Mapping[str, Any]
    value: float
    evaluated_s: float


def parse_response(body: bytes) -> InstantVector:
    """The vector in a response with status 200. Raises PollError."""
    chunks = _Chunks(body) if len(body) >= LARGE_BYTES else None
    response = _json(body if chunks is None else chunks.envelope)
    if response.get("status") != "success":
        raise PollError("query", error_message(body) or "the response does not have status `success`")
    data = response.get("data")
    kind = data.get("resultType") if isinstance(data, dict) else None
    series = data.get("result") if isinstance(data, dict) else None
    if kind in ("scalar", "string", "matrix"):
        help_ = {"scalar": "; wrap it in vector(...)", "matrix": "; remove the range selector"}.get(kind, "")
        raise PollError("wrong_type", f"the query returns a {kind}, not one value per series{help_}")
    if kind != "vector" or not isinstance(series, list):
        raise PollError("malformed", "the response is not a Prometheus API response")
    if chunks is not None:
        if series:
            raise PollError("malformed", "a large response must have one `result`")
        series = chunks
    warnings = response.get("warnings")
    lines = warnings if isinstance(warnings, list) else []
    return InstantVector(series, tuple(sanitize_line(line) for line in lines[:_WARNINGS_MAX]))


class _Chunks:
    """The series of a large response. `envelope`: the response without them. Raises PollError."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        result = _RESULT.search(body)
        if result is None:
            raise PollError(
                "malformed", f"{len(body):,} bytes without a result are no Prometheus API response"
            )
        self._cuts = [result.end()]
        while cut := _BETWEEN_SERIES.search(body, self._cuts[-1] + CHUNK_BYTES):
            self._cuts.append(cut.end())
        parts = [result.end(), *(end - start for start, end in zip(self._cuts, self._cuts[1:], strict=False))]
        if max(*parts, len(body) - self._cuts[-1]) > PART_BYTES_MAX:
            raise PollError(
                "malformed",
                f"a part of the response without a series is longer than {PART_BYTES_MAX:,} bytes",
            )
        self._last, after = _split_array(b"[" + body[self._cuts[-1] :])
        self.envelope = body[: result.end()] + b"]" + after

    def __iter__(self) -> Iterator[Any]:
        for start, end in zip(self._cuts, self._cuts[1:], strict=False):
            yield from _loads(b"[" + self._body[start:end].rstrip(_SEPARATOR) + b"]")
        yield from self._last


def _split_array(body: bytes) -> tuple[list[Any], bytes]:
    """The array that the bytes begin with, and the bytes after it. orjson cannot say where a value ends."""
    try:
        text = body.decode()
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise PollError("malformed", f"the response is not JSON: {sanitize_line(str(error))}") from None
    return _loads(text[:end].encode()), text[end:].encode()


def parse_series(series: Any) -> SeriesValue | None:
    """None unless it is a series with one number (a native histogram is not). NaN and infinity are numbers here."""
    if not isinstance(series, dict):
        return None
    labels, pair = series.get("metric"), series.get("value")
    if not isinstance(labels, dict) or not isinstance(pair, list) or len(pair) != 2:
        return None
    evaluated_s, text = pair
    if not isinstance(text, str) or not isinstance(evaluated_s, int | float):
        return None
    try:
        return SeriesValue(labels, float(text), float(evaluated_s))
    except (ValueError, OverflowError):  # not a number, or out of range
        return None


def error_message(body: bytes) -> str:
    """The error in a response body; empty if there is none, or if it is long."""
    if len(body) > PART_BYTES_MAX:
        return ""
    try:
        response = _json(body)
    except PollError:
        return ""
    error, kind = response.get("error"), response.get("errorType")
    return sanitize_line(": ".join(part for part in (kind, error) if isinstance(part, str) and part))


def _loads(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise PollError("malformed", f"the response is not JSON: {sanitize_line(str(error))}") from None


def _json(body: bytes) -> dict[str, Any]:
    response = _loads(body)
    if not isinstance(response, dict):
        raise PollError("malformed", "the response is not a Prometheus API response")
    return response
