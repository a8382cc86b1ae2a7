"""What we have to say about a place in a text."""

from dataclasses import dataclass
from enum import IntEnum

from policysched.text.source import Span


class Severity(IntEnum):
    """Ordered: `severity >= Severity.WARNING` asks what it looks like."""

    HINT = 1
    WARNING = 2
    ERROR = 3

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Label:
    """A second place that matters, such as the declaration, and a few words about it."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding: one cause, at one place.

    `code` is `PS` and three digits, `name` its kebab-case name (both in `policysched.lang.diagnostics.catalogue`). `message` is one
    sentence without a full stop, what the user wrote in backticks. `label` are a few words under the carets. `help`
    says what to type. `span` is None only for what has no place, such as a file that cannot be read.
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
