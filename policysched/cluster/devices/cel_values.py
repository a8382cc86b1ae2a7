"""Quantities and semantic versions as values of CEL, and the functions on them.

The CEL runtime has no types for them, so they are bytes in a canonical form: equal values are equal
bytes, and string functions do not accept them. Source: `quantity.go` and `semverlib.go` in
k8s.io/apiserver/pkg/cel/library.
"""

import re
from collections.abc import Callable
from fractions import Fraction

from policysched.model.quantity import INT64_MAX, INT64_MIN, parse_quantity

_QUANTITY, _SEMVER = b"q", b"v"
_NUMBER = r"(?:0|[1-9][0-9]*)"
_SEMVER_TEXT = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-([0-9A-Za-z.-]+))?(?:\+([0-9A-Za-z.-]+))?\Z", re.ASCII
)
_NUMERIC = re.compile(_NUMBER + r"\Z", re.ASCII)
_PLACES_MAX = 9  # the resolution of a quantity is one billionth


# ── to and from bytes ──────────────────────────────────────────────────────────────────────────────────────────────


def quantity_value(amount: Fraction) -> bytes:
    return _QUANTITY + str(amount).encode()


def semver_value(text: str) -> bytes:
    """Without build metadata, which comparisons ignore. Raises ValueError if the text is not a
    version."""
    match = _SEMVER_TEXT.match(text)
    if match is None:
        raise ValueError(f"`{text[:64]}` is not a semantic version")
    pre = match.group(4)
    for part in pre.split(".") if pre is not None else ():
        if not part or (part.isdigit() and not _NUMERIC.match(part)):
            raise ValueError(f"`{text[:64]}` has an invalid pre-release part")
    core = ".".join(match.group(1, 2, 3))
    return _SEMVER + (core if pre is None else f"{core}-{pre}").encode()


def _amount(value: bytes) -> Fraction:
    if value[:1] != _QUANTITY:
        raise ValueError("no such overload: not a quantity")
    return Fraction(value[1:].decode())


def _version(value: bytes) -> tuple[tuple[int, int, int], str]:
    if value[:1] != _SEMVER:
        raise ValueError("no such overload: not a semantic version")
    core, _, pre = value[1:].decode().partition("-")
    major, minor, patch = (int(part) for part in core.split("."))
    return (major, minor, patch), pre


# ── comparison ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def compare_to(left: bytes, right: bytes) -> int:
    if left[:1] == right[:1] == _QUANTITY:
        return _sign(_amount(left) - _amount(right))
    (left_core, left_pre), (right_core, right_pre) = _version(left), _version(right)
    if left_core != right_core:
        return 1 if left_core > right_core else -1
    return _compare_pre(left_pre, right_pre)


def is_greater_than(left: bytes, right: bytes) -> bool:
    return compare_to(left, right) > 0


def is_less_than(left: bytes, right: bytes) -> bool:
    return compare_to(left, right) < 0


def _compare_pre(left_pre: str, right_pre: str) -> int:
    """Semantic Versioning 2.0.0, 11: a pre-release comes before its release; numbers before text;
    fewer parts first."""
    if not left_pre or not right_pre:
        return bool(right_pre) - bool(left_pre)
    left, right = left_pre.split("."), right_pre.split(".")
    for a, b in zip(left, right, strict=False):
        if a == b:
            continue
        if a.isdigit() and b.isdigit():
            return 1 if int(a) > int(b) else -1
        if a.isdigit() != b.isdigit():
            return -1 if a.isdigit() else 1
        return 1 if a > b else -1
    return _sign(Fraction(len(left) - len(right)))


# ── quantities ─────────────────────────────────────────────────────────────────────────────────────────────────────


def quantity(text: str) -> bytes:
    return quantity_value(parse_quantity(text))


def is_quantity(text: str) -> bool:
    return _is(parse_quantity, text)


def sign(value: bytes) -> int:
    return _sign(_amount(value))


def is_integer(value: bytes) -> bool:
    amount = _amount(value)
    return amount.denominator == 1 and INT64_MIN <= amount <= INT64_MAX


def as_integer(value: bytes) -> int:
    if not is_integer(value):
        raise ValueError("cannot convert value to integer")
    return int(_amount(value))


def as_approximate_float(value: bytes) -> float:
    return float(_amount(value))


def add(left: bytes, right: bytes | int) -> bytes:
    return quantity_value(_amount(left) + (right if isinstance(right, int) else _amount(right)))


def sub(left: bytes, right: bytes | int) -> bytes:
    return quantity_value(_amount(left) - (right if isinstance(right, int) else _amount(right)))


# ── semantic versions ──────────────────────────────────────────────────────────────────────────────────────────────


def semver(text: str, normalize: bool = False) -> bytes:
    return semver_value(_normalized(text) if normalize else text)


def is_semver(text: str, normalize: bool = False) -> bool:
    return _is(lambda text: semver(text, normalize), text)


def major(value: bytes) -> int:
    return _version(value)[0][0]


def minor(value: bytes) -> int:
    return _version(value)[0][1]


def patch(value: bytes) -> int:
    return _version(value)[0][2]


def _normalized(text: str) -> str:
    """`v1.02` is `1.2.0`."""
    parts = text.removeprefix("v").split(".", 2)
    for index, part in enumerate(parts):
        if len(part) > 1:
            bare = part.lstrip("0")
            parts[index] = bare if bare[:1].isdigit() else f"0{bare}"
    if len(parts) < 3 and any(mark in parts[-1] for mark in "+-"):
        raise ValueError("short version cannot contain PreRelease/Build meta data")
    return ".".join([*parts, "0", "0"][:3])


def _is(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


def _sign(number: Fraction) -> int:
    return (number > 0) - (number < 0)


# ── text ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def quantity_text(amount: Fraction) -> str:
    """A quantity that the API server accepts: an integer, or billionths rounded up."""
    if amount.denominator == 1:
        return str(amount.numerator)
    nano = -(-amount.numerator * 10**_PLACES_MAX // amount.denominator)
    return f"{nano}n"
