"""Kubernetes quantities: `250m`, `1.5Gi`, `2e3`. Exact, and rounded up where Kubernetes rounds up.

Grammar and rounding: `k8s.io/apimachinery/pkg/api/resource`, `Quantity.Value` and `Quantity.MilliValue`.
"""

import re
from fractions import Fraction

from policysched.text.short_text_cache import cache_short_texts

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)

_QUANTITY = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:([eE])([+-]?\d{1,3})|([A-Za-z]{0,2}))\Z", re.ASCII)
_SUFFIXES: dict[str, Fraction] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{suffix: Fraction(10 ** (3 * power)) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", start=1)},
}


@cache_short_texts(maxsize=8192)
def parse_quantity(text: str) -> Fraction:
    """The exact value. Raises ValueError, with a message for users, where the text is not a quantity."""
    match = _QUANTITY.match(text)
    if match is None:
        raise ValueError(f"`{text[:64]}` is not a quantity, such as `250m` or `1.5Gi`")
    sign, digits, exponent_mark, exponent, suffix = match.groups()
    if exponent_mark:
        factor = Fraction(10) ** int(exponent)
    elif suffix in _SUFFIXES:
        factor = _SUFFIXES[suffix]
    else:
        raise ValueError(f"`{text[:64]}` has the unknown suffix `{suffix}`")
    value = Fraction(digits) * factor
    return -value if sign == "-" else value


@cache_short_texts(maxsize=8192)
def parse_whole_units(text: str) -> int:
    """The value in whole units (bytes, counts), rounded up and clamped to int64."""
    return _ceil_int64(parse_quantity(text))


@cache_short_texts(maxsize=8192)
def parse_milli_units(text: str) -> int:
    """The value in thousandths (of a core), rounded up and clamped to int64."""
    return _ceil_int64(parse_quantity(text) * 1000)


def _ceil_int64(value: Fraction) -> int:
    return max(-INT64_MAX, min(INT64_MAX, -(-value.numerator // value.denominator)))
