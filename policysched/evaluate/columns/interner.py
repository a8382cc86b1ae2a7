"""Values as small whole numbers, so that a column holds codes and a question is asked once a distinct value."""

from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value", bound=Hashable)

UNKNOWN = -2
"""The code of a value that no node has: equal to no other code."""
ABSENT = -1
"""The code of nothing: a label that is not there."""


class Interner(Generic[Value]):
    """Codes from 0, in the order of first sight. `values[code]` is the way back."""

    __slots__ = ("_codes", "values")

    def __init__(self) -> None:
        self._codes: dict[Value, int] = {}
        self.values: list[Value] = []

    def code(self, value: Value) -> int:
        """The value's code; a new one for a new value."""
        found = self._codes.get(value)
        if found is None:
            found = self._codes[value] = len(self.values)
            self.values.append(value)
        return found

    def find(self, value: Value) -> int:
        """The value's code, or UNKNOWN where nobody has it. Nothing is remembered."""
        return self._codes.get(value, UNKNOWN)

    def __len__(self) -> int:
        return len(self.values)
