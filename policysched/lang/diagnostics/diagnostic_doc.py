"""The documentation of one diagnostic."""

from dataclasses import dataclass

from policysched.text import Severity


@dataclass(frozen=True, slots=True)
class DiagnosticDoc:
    """The documentation of one diagnostic code.

    `summary` is one line without a full stop. `explanation` says why it matters and what to do.
    `bad_example` is a complete policy that triggers the code, `good_example` the fixed policy (a test
    lints both); both are empty for codes that no policy triggers by itself. `other_files` holds further
    keys of the ConfigMap that the examples need. An `opt_in` diagnostic is reported only if it is selected.
    """

    code: str
    name: str
    severity: Severity
    summary: str
    explanation: str
    bad_example: str
    good_example: str
    other_files: tuple[tuple[str, str], ...] = ()
    opt_in: bool = False


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
    """An entry whose examples share the lines `head`."""
    return DiagnosticDoc(
        code, name, severity, summary, explanation, f"{head}{bad}\n", f"{head}{good}\n", others
    )
