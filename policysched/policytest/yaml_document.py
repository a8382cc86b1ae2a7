"""A YAML text as plain values and the span of each, for diagnostics of a test file.

A duplicate key is an error, since YAML would silently drop the first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.text import Diagnostic, Position, Source, Span
from policysched.yaml_values import InvalidYaml, YamlValue, read_yaml

Path = tuple[str | int, ...]


class UnusableTestFile(Exception):
    """A test file that cannot be used: `diagnostics`."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__(f"{len(diagnostics)} diagnostic(s)")
        self.diagnostics = diagnostics


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """`values` are plain maps, lists, strings, numbers, booleans and nulls."""

    source: Source
    values: Any
    root: YamlValue

    def span(self, *path: str | int) -> Span:
        """The span of the value at the path, or of its nearest ancestor in the text."""
        value = self.root.find(path)
        return _first_line_span(self.source, value.start, value.end)


def parse_document(source: Source) -> YamlDocument:
    """Raises UnusableTestFile."""
    try:
        root = read_yaml(source.text)
        problems = () if root is None else tuple(_key_problems(root, source))
        values = None if root is None or problems else root.construct()
    except InvalidYaml as error:
        at = 0 if error.position is None else source.offset(error.position)
        raise UnusableTestFile((unusable_diagnostic(str(error), Span(source, at, at)),)) from None
    if problems:
        raise UnusableTestFile(problems)
    if root is None or not isinstance(values, dict):
        raise UnusableTestFile(
            (unusable_diagnostic("a test file must be a map with `policy` and `tests`", Span(source, 0, 0)),)
        )
    return YamlDocument(source, values, root)


def unusable_diagnostic(message: str, span: Span, *, help: str = "") -> Diagnostic:  # noqa: A002 (as in Diagnostic)
    return make_diagnostic("PS703", message, span, help=help)


def _key_problems(root: YamlValue, source: Source) -> Iterator[Diagnostic]:
    for problem in root.key_problems():
        message = (
            f"duplicate key `{problem.key}`"
            if problem.is_duplicate
            else f"the key `{problem.key}` is not a string; put it in quotes"
        )
        yield unusable_diagnostic(message, _first_line_span(source, problem.start, problem.end))


def _first_line_span(source: Source, start: Position, end: Position) -> Span:
    """The value up to the end of its first line."""
    at = source.offset(start)
    line_end = source.text.find("\n", at)
    until = source.offset(end)
    return Span(source, at, until if line_end < 0 else max(at, min(until, line_end)))
