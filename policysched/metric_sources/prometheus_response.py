"""What Prometheus answers to an instant query, read with suspicion: gateways and proxies answer in its name, too.

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
    """Series with one value each, as they came: `parse_series` says what one of them has. `warnings`: the answer may be
    partial."""

    series: list[Any]
    warnings: tuple[str, ...] = ()


class SeriesValue(NamedTuple):
    """A series' labels and value, and the time of evaluation by the server's clock (s since 1970). A tuple, for thousands
    are made at each poll."""

    labels: Mapping[str, Any]
    value: float
    evaluated_s: float


def parse_response(body: bytes) -> InstantVector:
    """Of an answer with the status 200. Raises Unusable."""
    answer = _json(body)
    if answer.get("status") != "success":
        raise PollError("query", error_message(body) or "the response does not have status `success`")
    data = answer.get("data")
    kind = data.get("resultType") if isinstance(data, dict) else None
    series = data.get("result") if isinstance(data, dict) else None
    if kind in ("scalar", "string", "matrix"):
        help_ = {"scalar": "; wrap it in vector(...)", "matrix": "; remove the range selector"}.get(kind, "")
        raise PollError("wrong_type", f"the query returns a {kind}, not one value per series{help_}")
    if kind != "vector" or not isinstance(series, list):
        raise PollError("garbage", "the response is not a Prometheus API response")
    warnings = answer.get("warnings")
    said = warnings if isinstance(warnings, list) else []
    return InstantVector(series, tuple(sanitize_line(one) for one in said[:_WARNINGS_MAX]))


def parse_series(series: Any) -> SeriesValue | None:
    """None where it has not the form of a series with one number (a native histogram has none). NaN and infinity are
    numbers here."""
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
    except (ValueError, OverflowError):  # no number, or one that no float can be
        return None


def error_message(body: bytes) -> str:
    """What an answer says of its failure; empty where it says nothing that can be read."""
    try:
        answer = _json(body)
    except PollError:
        return ""
    words = answer.get("error")
    kind = answer.get("errorType")
    said = ": ".join(part for part in (kind, words) if isinstance(part, str) and part)
    return sanitize_line(said)


def _json(body: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise PollError("garbage", f"the answer is not JSON: {sanitize_line(str(error))}") from None
    if not isinstance(answer, dict):
        raise PollError("garbage", "the response is not a Prometheus API response")
    return answer
