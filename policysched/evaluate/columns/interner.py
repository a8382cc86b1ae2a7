"""`Interner`: codes for values, so that columns hold small integers and a predicate is evaluated once per distinct value."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value", bound=Hashable)

UNKNOWN = -2
"""The code of a value that was never interned; equal to no other code."""
ABSENT = -1
"""The code of an absent value, such as a missing label."""
_SCRATCH = 2**30
"""The first code of a `ScratchInterner`'s own: an interner has fewer, and codes have 32 bits."""


class Interner(Generic[Value]):
    """Codes from 0, in the order of first use; `values[code]` is the value. `weight`: one for each value, or what `weigh` says."""

    __slots__ = ("_codes", "_values", "_weigh", "values", "weight")

    def __init__(self, weigh: Callable[[Any], int] | None = None) -> None:
        self._codes: dict[Value, int] = {}
        self._values: list[Value] = []
        self.values: Sequence[Value] = self._values
        self._weigh = weigh
        self.weight = 0

    def code(self, value: Value) -> int:
        """The value's code; a new value gets the next one."""
        code = self._codes.get(value)
        if code is None:
            code = self._codes[value] = len(self._values)
            self._values.append(value)
            self.weight += 1 if self._weigh is None else self._weigh(value)
        return code

    def find(self, value: Value) -> int:
        """The value's code, or UNKNOWN. Never adds the value."""
        return self._codes.get(value, UNKNOWN)

    def __len__(self) -> int:
        return len(self._values)


class ScratchInterner(Interner[Value]):
    """Finds the values of another interner, and gives others codes of its own, which are gone with it: for texts that a
    tenant writes. A value that the other one gets later has two codes."""

    __slots__ = ("_base",)

    def __init__(self, base: Interner[Value]) -> None:
        super().__init__()
        self._base = base
        self.values = _ValuesOfBoth(base.values, self._values)

    def code(self, value: Value) -> int:
        code = self.find(value)
        return _SCRATCH + super().code(value) if code == UNKNOWN else code

    def find(self, value: Value) -> int:
        code = self._base.find(value)
        if code == UNKNOWN and (own := super().find(value)) != UNKNOWN:
            code = _SCRATCH + own
        return code


class _ValuesOfBoth(Sequence[Value]):
    def __init__(self, base: Sequence[Value], scratch: Sequence[Value]) -> None:
        self._base, self._scratch = base, scratch

    @overload
    def __getitem__(self, code: int) -> Value: ...
    @overload
    def __getitem__(self, code: slice) -> Sequence[Value]: ...
    def __getitem__(self, code: int | slice) -> Value | Sequence[Value]:
        assert isinstance(code, int), "codes are looked up one by one"
        return self._base[code] if code < _SCRATCH else self._scratch[code - _SCRATCH]

    def __len__(self) -> int:
        return _SCRATCH + len(self._scratch)
