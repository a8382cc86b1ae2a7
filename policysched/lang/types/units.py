"""Numbers with units: literals of a policy, values of labels and annotations, and text for users.

All three share one table of suffixes. Parsing is exact (fractions), so `1.5Gi` is a whole number of bytes and `0.1Ki` is
not.
"""

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction

from policysched.lang.types.kinds import FLOAT64_MAX, QOS_CLASSES, Type, TypeKind
from policysched.model.quantity import INT64_MAX, INT64_MIN
from policysched.text.sanitize import sanitize_line
from policysched.text.short_text_cache import cache_short_texts

ScalarValue = bool | int | float | str

_DECIMAL = {suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)}
_BINARY = {f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", start=1)}
_BITS_PER_SECOND = {"bps": 1, "kbps": 10**3, "Mbps": 10**6, "Gbps": 10**9, "Tbps": 10**12}
_BYTES_PER_SECOND = {
    "Bps": 8,
    "kBps": 8 * 10**3,
    "KBps": 8 * 10**3,
    "MBps": 8 * 10**6,
    "GBps": 8 * 10**9,
    "TBps": 8 * 10**12,
}
_SECOND_NS = 10**9

SUFFIXES: dict[TypeKind, dict[str, Fraction]] = {
    TypeKind.INT: {"": Fraction(1)},
    TypeKind.FLOAT: {"": Fraction(1)},
    TypeKind.CPU: {"": Fraction(1000), "m": Fraction(1)},
    TypeKind.BYTES: {"": Fraction(1), **_DECIMAL, **_BINARY},
    TypeKind.BANDWIDTH: {
        suffix: Fraction(bits) for suffix, bits in {**_BITS_PER_SECOND, **_BYTES_PER_SECOND}.items()
    },
    TypeKind.RATIO: {"": Fraction(1), "%": Fraction(1, 100)},
    TypeKind.DURATION: {
        "ms": Fraction(_SECOND_NS, 1000),
        "s": Fraction(_SECOND_NS),
        "m": Fraction(60 * _SECOND_NS),
        "h": Fraction(3600 * _SECOND_NS),
        "d": Fraction(86400 * _SECOND_NS),
    },
}
"""By type: the suffixes of literals and their factors to the unit of the type."""

SUFFIX_ORDER = (TypeKind.RATIO, TypeKind.DURATION, TypeKind.BANDWIDTH, TypeKind.BYTES, TypeKind.CPU)


def kinds_of_suffix(suffix: str) -> tuple[TypeKind, ...]:
    """The types that have the suffix; `m` belongs to two."""
    return tuple(kind for kind in SUFFIX_ORDER if suffix and suffix in SUFFIXES[kind])


# ── units of samples and of bare numbers in labels ─────────────────────────────────────────────────────────────────

_BIT_RATE = {f"{p}bit/s": 10 ** (3 * i) for i, p in enumerate(("", "k", "M", "G", "T"))}
_BYTE_RATE = {f"{p}B/s": 8 * 10 ** (3 * i) for i, p in enumerate(("", "k", "M", "G", "T"))}
_BINARY_RATE = {f"{p}iB/s": 8 * 1024**i for i, p in enumerate(("K", "M", "G", "T"), start=1)}
_SIZES = {f"{p}B": 1000**i for i, p in enumerate(("", "k", "M", "G", "T", "P"))}
_BINARY_SIZES = {f"{p}iB": 1024**i for i, p in enumerate(("K", "M", "G", "T", "P"), start=1)}

UNITS: dict[TypeKind, dict[str, Fraction]] = {
    TypeKind.INT: {"1": Fraction(1)},
    TypeKind.FLOAT: {"1": Fraction(1)},
    TypeKind.CPU: {
        "cores": Fraction(1000),
        "core": Fraction(1000),
        "1": Fraction(1000),
        "millicores": Fraction(1),
    },
    TypeKind.BYTES: {
        unit: Fraction(size)
        for unit, size in {
            **_SIZES,
            "KB": 1000,
            **_BINARY_SIZES,
            **{k: int(v) for k, v in _BINARY.items()},
        }.items()
    },
    TypeKind.BANDWIDTH: {
        unit: Fraction(bits)
        for unit, bits in {
            **_BIT_RATE,
            **_BYTE_RATE,
            "KB/s": 8000,
            **_BINARY_RATE,
            **_BITS_PER_SECOND,
            **_BYTES_PER_SECOND,
        }.items()
    },
    TypeKind.RATIO: {"1": Fraction(1), "%": Fraction(1, 100)},
    TypeKind.DURATION: {
        "ns": Fraction(1),
        "us": Fraction(1000),
        "ms": Fraction(10**6),
        "s": Fraction(_SECOND_NS),
        "min": Fraction(60 * _SECOND_NS),
        "h": Fraction(3600 * _SECOND_NS),
        "d": Fraction(86400 * _SECOND_NS),
    },
    TypeKind.TIMESTAMP: {"s": Fraction(_SECOND_NS), "ms": Fraction(10**6), "ns": Fraction(1)},
}
"""By type: the allowed values of `unit "..."` and their factors to the unit of the type."""


def unit_factor(type_: Type, unit: str) -> Fraction | None:
    """The factor from `unit` to the unit of the type; None where the type has no such unit."""
    return UNITS.get(type_.kind, {}).get(unit)


# ── literals of a policy ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """Why a text is not a value of the type."""

    reason: str  # "suffix" (unknown), "fine" (not a whole number), "large", "digits" (too many), "form" (other syntax)


def parse_literal(digits: str, suffix: str, kind: TypeKind) -> int | float | ParseFailure:
    """The value of a literal of a known type. Nothing is rounded."""
    factor = SUFFIXES[kind].get(suffix)
    if factor is None:
        return ParseFailure("suffix")
    number = _parse_number(digits)
    if number is None:
        return ParseFailure("digits")
    return _to_scalar(number * factor, Type(kind), round_up=False)


_DIGITS = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)\Z")
_NUMBER_CHARACTERS_MAX = 64


def _parse_number(text: str) -> Fraction | None:
    if len(text) > _NUMBER_CHARACTERS_MAX or not _DIGITS.match(text):
        return None
    return Fraction(text.rstrip(".") if text.endswith(".") else text)


def _to_scalar(value: Fraction, type_: Type, *, round_up: bool) -> int | float | ParseFailure:
    if type_.is_float64:
        if abs(value) > Fraction(FLOAT64_MAX):
            return ParseFailure("large")
        return float(value)
    if value.denominator != 1 and not round_up:
        return ParseFailure("fine")
    integer = -(-value.numerator // value.denominator)
    return integer if INT64_MIN <= integer <= INT64_MAX else ParseFailure("large")


# ── texts of labels and annotations ────────────────────────────────────────────────────────────────────────────────

_NUMBER_WITH_SUFFIX = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)(%|[A-Za-z]*)\Z"
)
_LONG_NUMBER = re.compile(r"[+-]?[0-9]{65}")


@cache_short_texts(maxsize=16384)
def parse_value(text: str, type_: Type, unit: str | None) -> ScalarValue | None:
    """The value of the text of a label or annotation; None where it is not of the type.

    Numbers are decimal with one of the type's suffixes, or without a suffix in the input's `unit`. A bandwidth with a
    `unit` can also be a Kubernetes quantity (`10M`), as in annotations of CNI plugins. Amounts of cpu and bytes are
    rounded up to whole units, as Kubernetes rounds quantities; an int must be whole as written. A value out of range is
    invalid. Blanks are not trimmed. A timestamp is RFC 3339 with a zone, a bool is `true` or `false`, a qos is the name
    of a class.
    """
    value = parse_value_or_failure(text, type_, unit)
    return None if isinstance(value, ParseFailure) else value


def parse_value_or_failure(text: str, type_: Type, unit: str | None) -> ScalarValue | ParseFailure:
    """Like `parse_value`, but returns the reason of a failure."""
    match type_.kind:
        case TypeKind.STRING:
            return text
        case TypeKind.BOOL:
            return {"true": True, "false": False}.get(text, ParseFailure("form"))
        case TypeKind.QOS:
            return QOS_CLASSES.index(text) if text in QOS_CLASSES else ParseFailure("form")
        case TypeKind.TIMESTAMP if unit is None:
            moment_ns = _parse_time(text)
            return ParseFailure("form") if moment_ns is None else moment_ns
        case TypeKind.INT if re.fullmatch(r"[+-]?[0-9]{1,64}", text) is None:
            return ParseFailure("large" if _LONG_NUMBER.match(text) else "form")
    match = _NUMBER_WITH_SUFFIX.match(text) if len(text) <= _NUMBER_CHARACTERS_MAX else None
    if match is None:
        return ParseFailure("large" if _LONG_NUMBER.match(text) else "form")
    digits, suffix = match.groups()
    factor = _input_factor(type_.kind, suffix, unit)
    if factor is None:
        return ParseFailure("suffix")
    return _to_scalar(Fraction(digits) * factor, type_, round_up=type_.kind in (TypeKind.CPU, TypeKind.BYTES))


def _input_factor(kind: TypeKind, suffix: str, unit: str | None) -> Fraction | None:
    if unit is None or (suffix in SUFFIXES.get(kind, ()) and suffix):
        return _suffix_factor(kind, suffix)
    factor = UNITS[kind].get(unit)
    if not suffix or factor is None:
        return factor
    quantity_factor = (_DECIMAL | _BINARY).get(suffix) if kind is TypeKind.BANDWIDTH else None
    return None if quantity_factor is None else factor * quantity_factor


def _suffix_factor(kind: TypeKind, suffix: str) -> Fraction | None:
    return SUFFIXES.get(kind, {}).get(suffix)


def _parse_time(text: str) -> int | None:
    if not re.fullmatch(
        r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", text, re.ASCII
    ):
        return None
    seconds, fraction = text[:19], re.search(r"\.(\d+)", text)
    zone = "+00:00" if text[-1] in "Zz" else text[-6:]
    try:
        moment = datetime.fromisoformat(seconds.replace("t", "T").replace(" ", "T") + zone)
    except ValueError:  # such as February 31
        return None
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    whole_ns = (since.days * 86400 + since.seconds) * _SECOND_NS
    value = whole_ns + (int(fraction.group(1).ljust(9, "0")) if fraction else 0)
    return value if INT64_MIN <= value <= INT64_MAX else None


# ── text for users ──────────────────────────────────────────────────────────────────────────────────────────────


def format_value(value: object, type_: Type) -> str:
    """A value as in a policy: `812Mbps`, `1.5Gi`, `250m`, `5m`, `85%`, with at most three decimals. Strings are sanitized
    and cut, since annotations can contain line breaks, terminal escapes and up to 256 KiB."""
    match type_.kind, value:
        case TypeKind.BOOL, bool():
            return "true" if value else "false"
        case TypeKind.LIST, tuple():
            element = type_.element or Type(TypeKind.STRING)
            return ", ".join(format_value(item, element) for item in value)
        case TypeKind.QOS, int():
            return QOS_CLASSES[value] if 0 <= value < len(QOS_CLASSES) else str(value)
        case TypeKind.TIMESTAMP, int() | float():
            return _format_time(int(value))
        case TypeKind.CPU, int() | float():
            return _format_decimals(value / 1000) if value % 1000 == 0 else f"{_format_decimals(value)}m"
        case TypeKind.BYTES, int() | float():
            return _format_bytes(value)
        case TypeKind.BANDWIDTH, int() | float():
            return _format_with_suffix(value, _BITS_PER_SECOND)
        case TypeKind.RATIO, int() | float():
            return f"{_format_decimals(value * 100)}%"
        case TypeKind.DURATION, int() | float():
            return _format_duration(value)
        case TypeKind.FLOAT, int() | float():
            return _format_decimals(value)
        case _, str():
            return sanitize_line(value)
        case _:
            return str(value)


def _format_decimals(value: float) -> str:
    if isinstance(value, int) or (math.isfinite(value) and abs(value) >= 1e15):
        return str(int(value))
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _format_with_suffix(value: float, steps: dict[str, int]) -> str:
    suffix, size = next(iter(steps.items()))
    for step_suffix, step_size in steps.items():
        if abs(value) >= step_size:
            suffix, size = step_suffix, step_size
    return f"{_format_decimals(value / size)}{suffix}"


def _format_bytes(value: float) -> str:
    """With the largest binary suffix that is not larger than the value, else in bytes."""
    for suffix, size in reversed(_BINARY.items()):
        if abs(value) >= size:
            return f"{_format_decimals(value / int(size))}{suffix}"
    return _format_decimals(value)


_DURATIONS = {
    "d": 86400 * _SECOND_NS,
    "h": 3600 * _SECOND_NS,
    "m": 60 * _SECOND_NS,
    "s": _SECOND_NS,
    "ms": _SECOND_NS // 1000,
}


def _format_duration(value: float) -> str:
    """`1h30m`: the two largest parts, down to milliseconds."""
    if value < 0:
        return f"-{_format_duration(-value)}"
    parts = []
    left = int(value)
    for suffix, size in _DURATIONS.items():
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{suffix}")
        if len(parts) == 2:
            break
    return "".join(parts) or "0s"


def _format_time(value: int) -> str:
    try:
        moment = datetime.fromtimestamp(value // _SECOND_NS, UTC)
    except (OverflowError, ValueError, OSError):  # outside the years 1 to 9999
        return f"{value // _SECOND_NS}s since 1970"
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
