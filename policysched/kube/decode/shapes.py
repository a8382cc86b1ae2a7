"""What the readers expect of an object, field by field, so that what does not fit is said at its place and in words.

The readers themselves do not ask, for the API server has checked what it stores, and there are many objects. Only where
one of them stumbles is the object laid beside its shape; and objects from files, which nobody has checked, are laid
beside it before they are read. `null` is as good as absent. Fields that no reader looks at are not looked at here.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from policysched.text.quote_value import shown


@dataclass(frozen=True, slots=True)
class Leaf:
    """A single value. `words` follow "should be"."""

    words: str
    fits: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class ListOf:
    each: "Shape"


@dataclass(frozen=True, slots=True)
class MapOf:
    """Any keys."""

    each: "Shape"


@dataclass(frozen=True, slots=True)
class Fields:
    needed: Mapping[str, "Shape"]
    free: Mapping[str, "Shape"]


Shape = Leaf | ListOf | MapOf | Fields


@dataclass(frozen=True, slots=True)
class Misfit:
    """`field` is a path such as `spec.taints[0].effect`; `why` continues it to a sentence."""

    field: str
    why: str


def misfit(shape: Shape, value: Any) -> Misfit | None:
    """The first field that is not as it should be, in the order of the shape."""
    return next(_misfits(shape, value, ""), None)


def one_of(*texts: str) -> Leaf:
    return Leaf(" or ".join(f"`{one}`" for one in texts), lambda value: value in texts)


def _whole(bits: int) -> Leaf:
    most = 2 ** (bits - 1)
    return Leaf(
        f"a whole number of at most {bits} bits",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and -most <= value < most,
    )


def _is_time(value: Any) -> bool:
    if isinstance(value, datetime):  # YAML reads one that is not quoted
        return True
    if not isinstance(value, str):
        return False
    try:
        datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError):
        return False
    return True


TEXT = Leaf("a string", lambda value: isinstance(value, str))
FLAG = Leaf("true or false", lambda value: isinstance(value, bool))
INT32, INT64 = _whole(32), _whole(64)
TIME = Leaf("a time such as 2026-01-31T12:00:00Z", _is_time)
QUANTITY = Leaf(
    "a quantity such as `250m` or `1.5Gi`",
    lambda value: isinstance(value, str | int | float) and not isinstance(value, bool),
)
TEXTS, TEXT_MAP, QUANTITIES = ListOf(TEXT), MapOf(TEXT), MapOf(QUANTITY)


def fields(needed: Mapping[str, Shape] | None = None, /, **free: Shape) -> Fields:
    return Fields(needed or {}, free)


def _misfits(shape: Shape, value: Any, path: str) -> Iterator[Misfit]:
    match shape:
        case Leaf(words, fits):
            if not fits(value):
                yield _wrong(path, value, words)
        case ListOf(each):
            if not isinstance(value, list | tuple):
                yield _wrong(path, value, "a list")
                return
            for index, one in enumerate(value):
                yield from _misfits(each, one, f"{path}[{index}]")
        case MapOf(each):
            if not isinstance(value, Mapping):
                yield _wrong(path, value, "a map")
                return
            for key, one in value.items():
                if not isinstance(key, str):
                    yield Misfit(path, f"has the key {shown(key)}, and keys should be strings")
                else:
                    yield from _misfits(each, one, f"{path}.{key}")
        case Fields(needed, free):
            if not isinstance(value, Mapping):
                yield _wrong(path, value, "a map")
                return
            for key, each in needed.items():
                yield from _in_field(each, value.get(key), _join(path, key), missing=True)
            for key, each in free.items():
                yield from _in_field(each, value.get(key), _join(path, key), missing=False)


def _in_field(shape: Shape, value: Any, path: str, *, missing: bool) -> Iterator[Misfit]:
    if value is not None:
        yield from _misfits(shape, value, path)
    elif missing:
        yield Misfit(path, "is missing")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _wrong(path: str, value: Any, words: str) -> Misfit:
    return Misfit(path or "(object)", f"is {shown(value)}, and should be {words}")
