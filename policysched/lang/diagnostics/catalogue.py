"""The catalogue of diagnostics: every code with its name, severity, prose and examples.

`PS0xx` (about the lint run itself) and `PS1xx` (syntax) stand in `rules_syntax`, `PS2xx` and up in `rules_check`,
`PS7xx` (what `policysched test` says of test files and of rules that no test tries) in `rules_tests`, `PS9xx` (what
only a running scheduler can say) in `rules_live`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from policysched.lang.diagnostics.check_docs import CHECK_DOCS
from policysched.lang.diagnostics.diagnostic_doc import DiagnosticDoc
from policysched.lang.diagnostics.live_docs import LIVE_DOCS
from policysched.lang.diagnostics.policytest_docs import POLICYTEST_DOCS
from policysched.lang.diagnostics.syntax_docs import SYNTAX_DOCS
from policysched.text import Diagnostic, Label, Span

__all__ = ["DIAGNOSTIC_DOCS", "DiagnosticDoc", "find_diagnostic_doc", "make_diagnostic"]


def _index_by_code(*tables: tuple[DiagnosticDoc, ...]) -> Mapping[str, DiagnosticDoc]:
    rules: dict[str, DiagnosticDoc] = {}
    names: set[str] = set()
    for rule in sorted((rule for table in tables for rule in table), key=lambda rule: rule.code):
        assert rule.code not in rules, f"two rules have the code {rule.code}"
        assert rule.name not in names, f"two rules are called {rule.name}"
        rules[rule.code] = rule
        names.add(rule.name)
    return MappingProxyType(rules)


DIAGNOSTIC_DOCS: Mapping[str, DiagnosticDoc] = _index_by_code(
    SYNTAX_DOCS, CHECK_DOCS, POLICYTEST_DOCS, LIVE_DOCS
)
"""Every rule by its code, in the order of the codes."""

_CODE_OF_NAME = {rule.name: code for code, rule in DIAGNOSTIC_DOCS.items()}


def find_diagnostic_doc(code_or_name: str) -> DiagnosticDoc | None:
    """The rule by its code (`PS210`, in any case) or its name (`unknown-name`)."""
    return DIAGNOSTIC_DOCS.get(_CODE_OF_NAME.get(code_or_name.lower(), code_or_name.upper()))


def make_diagnostic(
    code: str,
    message: str,
    span: Span | None,
    *,
    label: str = "",
    help: str = "",  # noqa: A002 (the word that is printed)
    notes: tuple[str, ...] = (),
    related: tuple[Label, ...] = (),
) -> Diagnostic:
    """A finding, with the name and severity that the catalogue gives to its code."""
    rule = DIAGNOSTIC_DOCS[code]
    return Diagnostic(code, rule.name, rule.severity, message, span, label, help, notes, related)
