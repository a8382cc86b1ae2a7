"""Diagnostics: messages about a span of a source."""

from dataclasses import dataclass
from enum import IntEnum

from policysched.text.source import Span


class Severity(IntEnum):
    """Ordered, so `severity >= Severity.WARNING` works."""

    HINT = 1
    WARNING = 2
    ERROR = 3

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Label:
    """A message at a second span, such as the declaration."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem at one place.

    `code` is `PS` and three digits, `name` its kebab-case name (both in `policysched.lang.diagnostics.catalogue`).
    `message` is one sentence without a full stop, with source text in backticks. `label` is a short text under the
    carets. `help` is the fix to type. `span` is None only for problems without a place, such as an unreadable file.
    """

    code: str
    name: str
    severity: Severity
    message: str
    span: Span | None
    label: str = ""
    help: str = ""
    notes: tuple[str, ...] = ()
    related: tuple[Label, ...] = ()
