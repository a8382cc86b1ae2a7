"""Parses Prometheus' response to an instant query. Gateways and proxies respond in its place, so nothing is assumed.

Form: https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from policysched.metric_sources.poll_status import PollError
from policysched.text.sanitize import sanitize_line

_WARNINGS_MAX = 5


@dataclass(frozen=True, slots=True)
class InstantVector:
    """Unparsed series with one value each, for `parse_series`. `warnings`: the response may be incomplete."""

    series: list[Any]
    warnings: tuple[str, ...] = ()


class SeriesValue(NamedTuple):
    """A series' labels and value, and the time of evaluation on the server's clock (s since 1970). A tuple, since each poll
    creates thousands."""

    labels: Mapping[str, Any]
    value: float
    evaluated_s: float


def parse_response(body: bytes) -> InstantVector:
    """The vector in a response with status 200. Raises PollError."""
    response = _json(body)
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
    warnings = response.get("warnings")
    lines = warnings if isinstance(warnings, list) else []
    return InstantVector(series, tuple(sanitize_line(line) for line in lines[:_WARNINGS_MAX]))


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
    """The error in a response body; empty if there is none."""
    try:
        response = _json(body)
    except PollError:
        return ""
    error, kind = response.get("error"), response.get("errorType")
    return sanitize_line(": ".join(part for part in (kind, error) if isinstance(part, str) and part))


def _json(body: bytes) -> dict[str, Any]:
    try:
        response = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise PollError("malformed", f"the response is not JSON: {sanitize_line(str(error))}") from None
    if not isinstance(response, dict):
        raise PollError("malformed", "the response is not a Prometheus API response")
    return response
