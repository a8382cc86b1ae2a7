"""Named source texts and spans in them.

A policy is usually part of a ConfigMap's YAML file. Its `Source` holds only the policy text; `Origin` maps its lines to
the lines of the file, so that diagnostics point into that file.
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

    Line `n` of the text (from 1) is line `n + line_offset` of the file; columns are shifted by `column_offset`. `note`
    names the containing object: `ConfigMap kube-system/policysched, key main.policy`. Where the text has no lines of its
    own in the file (a quoted scalar), every position is mapped to `fixed_position`, the position of its key.
    """

    line_offset: int = 0
    column_offset: int = 0
    note: str = ""
    fixed_position: Position | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A text and its name for the user: a path, `-`, or `ConfigMap ns/name key k`."""

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

    def offset(self, position: Position) -> int:
        """The character offset of a line and column in this text; its end for one behind it."""
        if position.line > len(self._line_starts):
            return len(self.text)
        return min(len(self.text), self._line_starts[position.line - 1] + position.column - 1)

    def file_position(self, offset: int) -> Position:
        """Line and column in the file that contains the text."""
        if self.origin.fixed_position is not None:
            return self.origin.fixed_position
        position = self.position(offset)
        return Position(position.line + self.origin.line_offset, position.column + self.origin.column_offset)

    def line_text(self, line: int) -> str:
        """A line of the text (counted from 1) without its line break."""
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
