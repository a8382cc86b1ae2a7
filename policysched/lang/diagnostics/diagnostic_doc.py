"""What is written down about each diagnostic. Its own module, so that the tables of rules can use it freely."""

from dataclasses import dataclass

from policysched.text import Severity


@dataclass(frozen=True, slots=True)
class DiagnosticDoc:
    """One diagnostic: what it is called, how bad it is, and how it looks and is mended.

    `summary` is one line without a full stop. `explanation` says in prose why it matters and what to do. `bad_example` is a
    whole policy text that draws the code when it is linted, `good_example` the same policy mended, which does not (a house
    test runs both); both are empty for what no text draws by itself. Where two files are needed, `other_files` holds the rest of the ConfigMap's keys.
    """

    code: str
    name: str
    severity: Severity
    summary: str
    explanation: str
    bad_example: str
    good_example: str
    other_files: tuple[tuple[str, str], ...] = ()


EXAMPLE_HEADER = "policy example version 1\ninclude kube_default\n"


def diagnostic_doc(
    code: str,
    name: str,
    summary: str,
    explanation: str,
    *,
    bad: str,
    good: str,
    severity: Severity = Severity.ERROR,
    head: str = EXAMPLE_HEADER,
    others: tuple[tuple[str, str], ...] = (),
) -> DiagnosticDoc:
    """One whose examples need only their own lines: `head` stands before both."""
    return DiagnosticDoc(
        code, name, severity, summary, explanation, f"{head}{bad}\n", f"{head}{good}\n", others
    )
