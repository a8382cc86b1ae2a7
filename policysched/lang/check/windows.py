"""`window("Mon-Fri 07:00-19:00, Sat 10:00-12:00", "Europe/Zurich")`: weekly time windows."""

import re
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from policysched.lang.check.scope import Scope
from policysched.lang.ir import expr as e
from policysched.lang.syntax import tree as s

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY_MINUTES = 24 * 60
_WEEK_MINUTES = 7 * _DAY_MINUTES
_PART = re.compile(r"([A-Z][a-z]{2})(?:-([A-Z][a-z]{2}))? ([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2})\Z")


def check_window(scope: Scope, node: s.CallExpr) -> e.WeeklyWindow | None:
    if len(node.args) != 2:
        scope.report(
            "PS209",
            f"`window` takes 2 arguments, found {len(node.args)}",
            node.span,
            help='for example `window("Mon-Fri 07:00-19:00", "Europe/Zurich")`',
        )
        return None
    hours, zone = node.args
    if not isinstance(hours, s.StringLit) or not isinstance(zone, s.StringLit):
        wrong = hours if not isinstance(hours, s.StringLit) else zone
        scope.report("PS238", "`window` expects two strings: hours and a time zone", wrong.span)
        return None
    spans = _parse_spans(hours.value)
    if spans is None:
        scope.report(
            "PS238",
            f"malformed weekly window `{hours.value}`",
            hours.span,
            help="write days and hours, for example `Mon-Fri 07:00-19:00` or `Sat 22:00-06:00, Sun 10:00-12:00`",
        )
    if not _is_known_zone(zone.value):
        scope.report(
            "PS238",
            f"unknown time zone `{zone.value}`",
            zone.span,
            help="for example `Europe/Zurich` or `UTC`",
        )
        return None
    return None if spans is None else e.WeeklyWindow(spans, zone.value, node.span)


def _is_known_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name is a directory of zones
        return False
    return True


def _parse_spans(text: str) -> tuple[tuple[int, int], ...] | None:
    """Half-open intervals in minutes since Monday 00:00, sorted and merged; they can cross midnight."""
    intervals: list[tuple[int, int]] = []
    for part in text.split(","):
        match = _PART.match(part.strip())
        if match is None:
            return None
        first, last, *clock = match.groups()
        from_hour, from_minute, to_hour, to_minute = map(int, clock)
        start, end = from_hour * 60 + from_minute, to_hour * 60 + to_minute
        if first not in _DAYS or (last or first) not in _DAYS or max(from_minute, to_minute) > 59:
            return None
        if start >= _DAY_MINUTES or end > _DAY_MINUTES or start == end:
            return None
        begin = _DAYS.index(first)
        days = (_DAYS.index(last or first) - begin) % 7 + 1
        for day in range(begin, begin + days):
            opens = day % 7 * _DAY_MINUTES + start
            intervals.append((opens, opens + (end - start if end > start else end - start + _DAY_MINUTES)))
    return _merge_spans(intervals)


def _merge_spans(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    wrapped = []
    for start, end in spans:
        wrapped.append((start, min(end, _WEEK_MINUTES)))
        if end > _WEEK_MINUTES:
            wrapped.append((0, end - _WEEK_MINUTES))
    joined: list[tuple[int, int]] = []
    for start, end in sorted(wrapped):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return tuple(joined)
