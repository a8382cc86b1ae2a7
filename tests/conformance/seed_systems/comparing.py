"""Compare the expected values of a case with the actual ones, key by key."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Difference:
    """`key` is the path of the expectation, with dots."""

    key: str
    expected: Any
    actual: Any

    def __str__(self) -> str:
        return f"{self.key}: expected {_brief(self.expected)}, found {_brief(self.actual)}"


class NotAnswered:
    """The actual value where there is no answer."""

    def __repr__(self) -> str:
        return "no answer"


NO_ANSWER = NotAnswered()


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a float may be off: absolutely, or as a share of the expected value. Integers are
    exact.
    """

    absolute: float = 0.0
    relative: float = 0.0

    @classmethod
    def of(cls, given: Mapping[str, float]) -> "Tolerance":
        """A case's `tolerance`: `abs`, `rel`, or another key, which holds for floats."""
        named = [value for key, value in given.items() if key not in ("rel", "scores")]
        return cls(absolute=max(named, default=0.0), relative=given.get("rel", 0.0))


def differences(
    expected: Mapping[str, Any], actual: Mapping[str, Any], tolerance: Tolerance
) -> list[Difference]:
    """Every expectation of the case that is not met. Values under `seed` or `seed_...` describe the
    original system; they are compared if they have an answer, or if the case expects nothing else.
    """
    keys = [key for key in expected if not _of_the_seed(key) or key in actual]
    if not keys:
        keys = list(expected)
    return [
        difference
        for key in keys
        for difference in _differ(key, expected[key], actual.get(key, NO_ANSWER), tolerance)
    ]


def _of_the_seed(key: str) -> bool:
    return key == "seed" or key.startswith("seed_") or key.endswith("_seed")


def _differ(key: str, expected: Any, actual: Any, tolerance: Tolerance) -> Iterator[Difference]:
    match expected, actual:
        case dict(), dict():
            for name, value in expected.items():
                yield from _differ(f"{key}.{name}", value, actual.get(name, NO_ANSWER), tolerance)
        case list(), list() if key.rpartition(".")[2] in _SETS:
            if sorted(map(repr, expected)) != sorted(map(repr, actual)):
                yield Difference(key, expected, actual)
        case list(), list() if len(expected) == len(actual):
            for index, (element, other) in enumerate(zip(expected, actual, strict=True)):
                yield from _differ(f"{key}.{index}", element, other, tolerance)
        case bool(), _:
            if expected is not actual:
                yield Difference(key, expected, actual)
        case int() | float(), int() | float() if isinstance(expected, float) or isinstance(actual, float):
            if not math.isclose(expected, actual, rel_tol=tolerance.relative, abs_tol=tolerance.absolute):
                yield Difference(key, expected, actual)
        case _:
            if expected != actual:
                yield Difference(key, expected, actual)


_SETS = ("feasible", "best", "one_of")
"""Keys of lists without a meaningful order: they follow the order of a mapping in the file."""


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."
