"""Programs from policy texts, for tests that are about what a policy means and not about how it is
checked."""

from policysched.lang.check import check_text
from policysched.lang.ir.program import Program
from policysched.text import Severity


def program(*lines: str, name: str = "test") -> Program:
    """The policy of these lines, which must check."""
    checked = check_text("\n".join((f"policy {name} version 1", *lines, "")))
    errors = [diagnostic for diagnostic in checked.diagnostics if diagnostic.severity is Severity.ERROR]
    assert checked.program is not None, "\n".join(f"{error.code} {error.message}" for error in errors)
    return checked.program


def metric(name: str, type_: str, unit: str, *more: str) -> str:
    """The declaration of a metric whose samples are as old as 90 s at most."""
    settings = ('query = "q"', f'unit = "{unit}"', "join = instance", "every = 15s", "stale = 90s", *more)
    return "\n".join((f"metric {name}: {type_} {{", *settings, "}"))
