"""Formatting a policy text, with proof that nothing but its looks changed."""

from collections import Counter
from dataclasses import dataclass, fields, is_dataclass

from policysched.lang.format.printer import print_tree
from policysched.lang.parse import parse
from policysched.text import Diagnostic, Severity, Source, Span

_FIXED_BY_PRINTING = frozenset({"PS118"})
"""Errors that leave the tree whole and go away by printing it: tabs."""


@dataclass(frozen=True, slots=True)
class FormatResult:
    """`text` is None where the policy has errors, which stand in `diagnostics`, or where `internal_error` names our own."""

    text: str | None
    diagnostics: tuple[Diagnostic, ...] = ()
    internal_error: str = ""


def format_source(source: Source) -> FormatResult:
    """The canonical text. It is read again before it is given out: same tree, same comments, same when printed again."""
    document, diagnostics = parse(source)
    errors = tuple(
        d for d in diagnostics if d.severity is Severity.ERROR and d.code not in _FIXED_BY_PRINTING
    )
    if errors:
        return FormatResult(None, errors)
    text = print_tree(document)
    again, problems = parse(Source(source.name, text))
    if any(d.severity is Severity.ERROR and d.code not in _FIXED_BY_PRINTING for d in problems):
        return FormatResult(None, internal_error="the formatted text would not parse")
    if not trees_equal(document.statements, again.statements):
        return FormatResult(None, internal_error="the formatted text would mean something else")
    if Counter(c.text for c in document.comments) != Counter(c.text for c in again.comments):
        return FormatResult(None, internal_error="the formatted text would have other comments")
    if print_tree(again) != text:
        return FormatResult(None, internal_error="formatting again would change the text again")
    return FormatResult(text)


def trees_equal(left: object, right: object) -> bool:
    """Whether two parts of syntax trees are equal, wherever they stand in their texts."""
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
