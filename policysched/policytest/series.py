"""Samples over time, in promtool's notation for unit tests.

900Mbps             the same value for ever
100Mbps 300Mbps _   one value each interval; `_`: none came, and the one before it grows old
100+50x3            100 150 200 250, as promtool counts: the first and three more
10x2 _x3 stale      10 10 10, three times none, and then the series has ended: missing at once
"""

import re
from collections.abc import Sequence
from enum import Enum

from policysched.lang.types.kinds import Type
from policysched.lang.types.units import parse_value

STEPS_MAX = 10_000


class Gap(Enum):
    """What stands in a series where no value does."""

    NONE = "_"
    STALE = "stale"


SeriesStep = int | float | Gap
"""A value in the held unit of the metric's type, or a gap."""


class BadSeries(Exception):
    """A text that is no series of the metric's type. One line that says which part and why."""


_REPEATED = re.compile(r"(?P<part>.+?)x(?P<times>[0-9]{1,6})\Z")
_STEPPED = re.compile(r"(?P<first>.+?)(?P<sign>[+-])(?P<step>[0-9].*)\Z")


def parse_series(text: str, type_: Type, unit: str) -> Sequence[SeriesStep]:
    """One step an interval. `unit` is that of bare numbers. Raises BadSeries."""
    steps: list[SeriesStep] = []
    for part in text.split():
        steps += _parse_part(part, type_, unit)
        if len(steps) > STEPS_MAX:
            raise BadSeries(f"more than {STEPS_MAX} values")
    if not steps:
        raise BadSeries("no value; a node without a sample is written `_`")
    return steps


def _parse_part(part: str, type_: Type, unit: str) -> list[SeriesStep]:
    if part == Gap.STALE.value:
        return [Gap.STALE]
    repeated = _REPEATED.match(part)
    if repeated is None:
        return [Gap.NONE if part == Gap.NONE.value else _parse_value(part, type_, unit)]
    times = int(repeated["times"])
    if times > STEPS_MAX:
        raise BadSeries(f"`{part}`: more than {STEPS_MAX} values")
    if repeated["part"] == Gap.NONE.value:
        return [Gap.NONE] * times
    stepped = _STEPPED.match(repeated["part"])
    if stepped is None:
        return [_parse_value(repeated["part"], type_, unit)] * (times + 1)
    first, step = _parse_value(stepped["first"], type_, unit), _parse_value(stepped["step"], type_, unit)
    return [first + (step if stepped["sign"] == "+" else -step) * index for index in range(times + 1)]


def _parse_value(text: str, type_: Type, unit: str) -> int | float:
    found = parse_value(text, type_, unit)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise BadSeries(f"`{text}` is no {type_}, `_` or `stale`")
    return found
