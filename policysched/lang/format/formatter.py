"""Formats a policy text and verifies that only its layout changed."""

from collections import Counter
from dataclasses import dataclass, fields, is_dataclass

from policysched.lang.format.printer import print_tree
from policysched.lang.parse import parse
from policysched.text import Diagnostic, Severity, Source, Span

_FIXED_BY_PRINTING = frozenset({"PS118"})
"""Errors that do not affect the tree and that formatting fixes: tabs."""


@dataclass(frozen=True, slots=True)
class FormatResult:
    """`text` is None if the policy has errors (`diagnostics`) or if the formatter has a bug (`internal_error`)."""

    text: str | None
    diagnostics: tuple[Diagnostic, ...] = ()
    internal_error: str = ""


def format_source(source: Source) -> FormatResult:
    """The canonical text. It is parsed again to verify that it has the same tree and comments and is stable."""
    document, diagnostics = parse(source)
    errors = tuple(
        d for d in diagnostics if d.severity is Severity.ERROR and d.code not in _FIXED_BY_PRINTING
    )
    if errors:
        return FormatResult(None, errors)
    text = print_tree(document)
    reparsed, reparse_diagnostics = parse(Source(source.name, text))
    if any(d.severity is Severity.ERROR and d.code not in _FIXED_BY_PRINTING for d in reparse_diagnostics):
        return FormatResult(None, internal_error="the formatted text does not parse")
    if not trees_equal(document.statements, reparsed.statements):
        return FormatResult(None, internal_error="the formatted text has a different meaning")
    if Counter(c.text for c in document.comments) != Counter(c.text for c in reparsed.comments):
        return FormatResult(None, internal_error="the formatted text has different comments")
    if print_tree(reparsed) != text:
        return FormatResult(None, internal_error="formatting the text again changes it again")
    return FormatResult(text)


def trees_equal(left: object, right: object) -> bool:
    """Whether two parts of syntax trees are equal, ignoring their spans."""
    pending = [(left, right)]
    while pending:
        a, b = pending.pop()
        if isinstance(a, Span) and isinstance(b, Span):
            continue
        if type(a) is not type(b):
            return False
        if isinstance(a, tuple) and isinstance(b, tuple):
            if len(a) != len(b):
                return False
            pending.extend(zip(a, b, strict=True))
        elif is_dataclass(a):
            pending.extend((getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
        elif a != b:
            return False
    return True
