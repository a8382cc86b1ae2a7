"""A text with a name, and spans in it.

A policy usually stands in a ConfigMap's YAML block scalar. Its `Source` holds the policy text alone; `Origin` knows
where each line of it stands in the file, so that a diagnostic points into the file that the user has open.
"""

from bisect import bisect_right
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a file. Line and column count from 1; the column counts characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Origin:
    """How a text inside another file maps to that file.

    Line `n` of the text (from 1) is line `n + line_offset` of the file, and each column is `column_offset` further
    right. `note` says what it is part of: `ConfigMap kube-system/policysched, key main.policy`. Where the text has no
    lines of its own in the file (a quoted scalar), `fixed_position` is the place of its key and stands for every position.
    """

    line_offset: int = 0
    column_offset: int = 0
    note: str = ""
    fixed_position: Position | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A text and what its user calls it: a path, `-`, or `ConfigMap ns/name key k`."""

    name: str
    text: str = field(repr=False)
    origin: Origin = Origin()
    _line_starts: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        starts = [0]
        starts.extend(i + 1 for i, char in enumerate(self.text) if char == "\n")
        object.__setattr__(self, "_line_starts", tuple(starts))

    def position(self, offset: int) -> Position:
        """Line and column of a character offset in this text (0 .. len(text) inclusive)."""
        line = bisect_right(self._line_starts, offset)
        return Position(line, offset - self._line_starts[line - 1] + 1)

    def file_position(self, offset: int) -> Position:
        """Line and column in the file that the text stands in."""
        if self.origin.fixed_position is not None:
            return self.origin.fixed_position
        place = self.position(offset)
        return Position(place.line + self.origin.line_offset, place.column + self.origin.column_offset)

    def line_text(self, line: int) -> str:
        """A line of the text (counted from 1), without its line end."""
        start = self._line_starts[line - 1]
        end = self._line_starts[line] - 1 if line < len(self._line_starts) else len(self.text)
        return self.text[start:end].rstrip("\r")

    @property
    def line_count(self) -> int:
        return len(self._line_starts)


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` to `end` (exclusive) of a source."""

    source: Source
    start: int
    end: int

    def cover(self, other: "Span") -> "Span":
        """From the start of this span to the end of another in the same source."""
        return Span(self.source, min(self.start, other.start), max(self.end, other.end))

    @property
    def text(self) -> str:
        return self.source.text[self.start : self.end]
