"""Diagnostics for terminals: `render_full` with a source excerpt, `render_concise` on one line."""

from collections.abc import Iterator

from policysched.text.diagnostic import Diagnostic, Severity
from policysched.text.sanitize import escape_to_line, escape_unprintable
from policysched.text.source import Source, Span

_LINE_CHARACTERS_MAX = 200
_RESET = "\x1b[0m"
_BOLD, _BLUE = "\x1b[1m", "\x1b[1;34m"
_SEVERITY_COLOURS = {
    Severity.ERROR: "\x1b[1;31m",
    Severity.WARNING: "\x1b[1;33m",
    Severity.HINT: "\x1b[1;36m",
}


def render_full(diagnostic: Diagnostic, *, colour: bool = False, explain_command: str = "") -> str:
    """Several lines, without a final newline. `explain_command` is the command that explains a code."""
    painter = _AnsiPainter(colour)
    head = painter.paint(
        _SEVERITY_COLOURS[diagnostic.severity], f"{diagnostic.severity.label}[{diagnostic.code}]"
    )
    lines = [f"{head} {painter.paint(_BOLD, diagnostic.message)}"]
    spans = [
        span for span in (diagnostic.span, *(label.span for label in diagnostic.related)) if span is not None
    ]
    width = max((len(str(_displayed_line_number(span))) for span in spans), default=1)
    if diagnostic.span is not None:
        mark = _SEVERITY_COLOURS[diagnostic.severity]
        lines.append(painter.location_line("-->", diagnostic.span, width))
        lines.extend(painter.excerpt(diagnostic.span, diagnostic.label, "^", mark, width))
    for label in diagnostic.related:
        if diagnostic.span is None or label.span.source is not diagnostic.span.source:
            lines.append(painter.location_line(":::", label.span, width))
        lines.extend(painter.excerpt(label.span, label.text, "-", _BLUE, width)[1:])
    if diagnostic.help:
        lines.append(f"{painter.paint(_BOLD, 'help')}: {diagnostic.help}")
    lines.extend(f"{painter.paint(_BOLD, 'note')}: {note}" for note in diagnostic.notes)
    if explain_command:
        lines.append(
            f"{painter.paint(_BOLD, 'note')}: run `{explain_command} {diagnostic.code}` for an explanation"
        )
    return "\n".join(lines)


def render_concise(diagnostic: Diagnostic) -> str:
    """`file:line:column: severity[code] message`."""
    location = f"{format_location(diagnostic.span)}: " if diagnostic.span is not None else ""
    return f"{location}{diagnostic.severity.label}[{diagnostic.code}] {diagnostic.message}"


def format_location(span: Span) -> str:
    """`file:line:column` in the containing file."""
    position = span.source.file_position(span.start)
    return f"{escape_to_line(span.source.name)}:{position.line}:{position.column}"


def summarize(diagnostics: tuple[Diagnostic, ...]) -> str:
    """`2 errors and 1 warning`, or `no findings`."""
    counts = [(severity, sum(d.severity is severity for d in diagnostics)) for severity in reversed(Severity)]
    parts = [f"{count} {severity.label}{'' if count == 1 else 's'}" for severity, count in counts if count]
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:]))) or "no findings"


class _AnsiPainter:
    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def paint(self, code: str, text: str) -> str:
        return f"{code}{text}{_RESET}" if self.colour and text else text

    def location_line(self, arrow: str, span: Span, width: int) -> str:
        source = span.source
        notes = [escape_to_line(source.origin.note)] if source.origin.note else []
        if source.origin.fixed_position is not None:
            notes.append(f"line {source.position(span.start).line}")
        note = f"   ({', '.join(notes)})" if notes else ""
        return f"{' ' * width}{self.paint(_BLUE, arrow)} {format_location(span)}{note}"

    def excerpt(self, span: Span, label: str, mark: str, code: str, width: int) -> list[str]:
        """The first line of the span with marks under it, between two empty gutter lines."""
        bar = self.paint(_BLUE, "|")
        text, start, length = _excerpt_line(span.source, span)
        number = self.paint(_BLUE, f"{_displayed_line_number(span):>{width}}")
        marks = self.paint(code, f"{mark * length} {label}".rstrip())
        empty = f"{' ' * width} {bar}"
        return [empty, f"{number} {bar} {text}".rstrip(), f"{empty} {' ' * start}{marks}", empty]


def _displayed_line_number(span: Span) -> int:
    """The line in the file, or in the text where that has no lines in the file."""
    source = span.source
    return (source.position if source.origin.fixed_position is not None else source.file_position)(
        span.start
    ).line


def _excerpt_line(source: Source, span: Span) -> tuple[str, int, int]:
    """The line as indented in the file, the offset of the marks and their number.

    Tabs are shown as one space, other unprintable characters as escapes.
    """
    position = source.position(span.start)
    line = source.line_text(position.line)
    start = position.column - 1
    length = max(1, min(span.end - span.start, len(line) - start))
    if len(line) > _LINE_CHARACTERS_MAX:
        left = max(0, start - _LINE_CHARACTERS_MAX // 2)
        line, start = line[left : left + _LINE_CHARACTERS_MAX], start - left
        length = max(1, min(length, len(line) - start))
    indent = "" if source.origin.fixed_position is not None else " " * source.origin.column_offset
    parts = (line[:start], line[start : start + length], line[start + length :])
    before, marked, after = (escape_unprintable(part.replace("\t", " ")) for part in parts)
    return indent + before + marked + after, len(indent) + len(before), max(1, len(marked))


def render_report(
    diagnostics: tuple[Diagnostic, ...], *, colour: bool = False, explain_command: str = ""
) -> Iterator[str]:
    """Each diagnostic, followed by an empty line."""
    for diagnostic in diagnostics:
        yield render_full(diagnostic, colour=colour, explain_command=explain_command) + "\n"
