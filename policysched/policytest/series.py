"""Samples over time, in the notation of promtool's unit tests.

900Mbps             the same value for ever
100Mbps 300Mbps _   one value per interval; `_`: no sample, and the previous one ages
100+50x3            100 150 200 250: as in promtool, the first and three more
10x2 _x3 stale      10 10 10, three gaps, then the series has ended: missing at once
"""

import re
from collections.abc import Sequence
from enum import Enum

from policysched.lang.types.kinds import Type
from policysched.lang.types.units import parse_value

STEPS_MAX = 10_000


class Gap(Enum):
    """A step of a series without a value."""

    NONE = "_"
    STALE = "stale"


SeriesStep = int | float | Gap
"""A value in the internal unit of the metric's type, or a gap."""


class BadSeries(Exception):
    """A text that is not a series of the metric's type. The message is one line: which part and why."""


_REPEATED = re.compile(r"(?P<part>.+?)x(?P<times>[0-9]{1,6})\Z")
_STEPPED = re.compile(r"(?P<first>.+?)(?P<sign>[+-])(?P<step>[0-9].*)\Z")


def parse_series(text: str, type_: Type, unit: str) -> Sequence[SeriesStep]:
    """One step per interval. `unit` applies to numbers without one. Raises BadSeries."""
    steps: list[SeriesStep] = []
    for part in text.split():
        steps += _parse_part(part, type_, unit)
        if len(steps) > STEPS_MAX:
            raise BadSeries(f"more than {STEPS_MAX} values")
    if not steps:
        raise BadSeries("no value; write `_` for a node without a sample")
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
    value = parse_value(text, type_, unit)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadSeries(f"`{text}` is not a value of type {type_}, `_` or `stale`")
    return value
