"""What changed, in order, for those who keep results and catch up with the changes since they last looked.

A position is a number that grows with each change; one that lies further back than the log reaches cannot be caught up with,
and whoever stands there starts over.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

Change = TypeVar("Change")

_LENGTH_MAX = 20_000


class ChangeLog(Generic[Change]):
    """`end` is the position behind the last change."""

    __slots__ = ("_changes", "_start")

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._start = 0

    @property
    def end(self) -> int:
        return self._start + len(self._changes)

    def append(self, change: Change) -> None:
        self._changes.append(change)
        if len(self._changes) > _LENGTH_MAX:
            half = _LENGTH_MAX // 2
            del self._changes[:half]
            self._start += half

    def since(self, position: int) -> Sequence[Change] | None:
        """The changes after a position; None: it is too far back."""
        return None if position < self._start else self._changes[position - self._start :]
