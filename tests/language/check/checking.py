"""A policy in a few lines, and what the checker says of it."""

from policysched.lang.check import check_text
from policysched.lang.ir.program import Program
from policysched.text import Severity

HEAD = "policy test version 1\ninclude kube_default\n"


def codes(*lines: str, head: str = HEAD, others: dict[str, str] | None = None) -> list[str]:
    """The codes that are reported, in the order of the text."""
    return [
        diagnostic.code
        for diagnostic in check_text(head + "\n".join(lines) + "\n", other_texts=others).diagnostics
    ]


def program(*lines: str, head: str = HEAD, others: dict[str, str] | None = None) -> Program:
    checked = check_text(head + "\n".join(lines) + "\n", other_texts=others)
    errors = [
        f"{diagnostic.code} {diagnostic.message}"
        for diagnostic in checked.diagnostics
        if diagnostic.severity is Severity.ERROR
    ]
    assert checked.program is not None, errors
    return checked.program
