"""`Interner`: codes for values, so that columns hold small integers and a predicate is evaluated once per distinct value."""

from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value", bound=Hashable)

UNKNOWN = -2
"""The code of a value that was never interned; equal to no other code."""
ABSENT = -1
"""The code of an absent value, such as a missing label."""


class Interner(Generic[Value]):
    """Codes from 0, in the order of first use; `values[code]` is the value."""

    __slots__ = ("_codes", "values")

    def __init__(self) -> None:
        self._codes: dict[Value, int] = {}
        self.values: list[Value] = []

    def code(self, value: Value) -> int:
        """The value's code; a new value gets the next one."""
        code = self._codes.get(value)
        if code is None:
            code = self._codes[value] = len(self.values)
            self.values.append(value)
        return code

    def find(self, value: Value) -> int:
        """The value's code, or UNKNOWN. Never adds the value."""
        return self._codes.get(value, UNKNOWN)

    def __len__(self) -> int:
        return len(self.values)
