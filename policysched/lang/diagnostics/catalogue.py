"""The catalogue of diagnostics: every code with its name, severity, prose and examples.

| codes | subject | module |
|---|---|---|
| `PS0xx`, `PS1xx` | the lint run, syntax | `syntax_docs` |
| `PS2xx` | names, types, units, parameter values | `name_docs`, `parameter_docs` |
| `PS27x`, `PS42x` | quotas | `quota_docs` |
| `PS3xx`, `PS4xx`, `PS5xx` | logic, operations, cost | `warning_docs` |
| `PS6xx` | values that tenants can set (opt-in) | `tenant_docs` |
| `PS7xx` | test files and coverage (`policysched test`) | `policytest_docs` |
| `PS9xx` | settings, servers, the running scheduler, policies of teams | `live_docs`, `tenant_docs` |
"""

from collections.abc import Mapping
from types import MappingProxyType

from policysched.lang.diagnostics.diagnostic_doc import DiagnosticDoc
from policysched.lang.diagnostics.live_docs import LIVE_DOCS
from policysched.lang.diagnostics.name_docs import NAME_DOCS
from policysched.lang.diagnostics.parameter_docs import PARAMETER_DOCS
from policysched.lang.diagnostics.policytest_docs import POLICYTEST_DOCS
from policysched.lang.diagnostics.quota_docs import QUOTA_DOCS
from policysched.lang.diagnostics.syntax_docs import SYNTAX_DOCS
from policysched.lang.diagnostics.tenant_docs import TEAM_DOCS, TRUST_DOCS
from policysched.lang.diagnostics.warning_docs import WARNING_DOCS
from policysched.text import Diagnostic, Label, Span
from policysched.text.sanitize import escape_to_line

__all__ = ["DIAGNOSTIC_DOCS", "DiagnosticDoc", "find_diagnostic_doc", "make_diagnostic"]


def _index_by_code(*tables: tuple[DiagnosticDoc, ...]) -> Mapping[str, DiagnosticDoc]:
    docs: dict[str, DiagnosticDoc] = {}
    names: set[str] = set()
    for doc in sorted((doc for table in tables for doc in table), key=lambda doc: doc.code):
        assert doc.code not in docs, f"duplicate code {doc.code}"
        assert doc.name not in names, f"duplicate name {doc.name}"
        docs[doc.code] = doc
        names.add(doc.name)
    return MappingProxyType(docs)


DIAGNOSTIC_DOCS: Mapping[str, DiagnosticDoc] = _index_by_code(
    SYNTAX_DOCS,
    NAME_DOCS,
    PARAMETER_DOCS,
    QUOTA_DOCS,
    WARNING_DOCS,
    TRUST_DOCS,
    POLICYTEST_DOCS,
    LIVE_DOCS,
    TEAM_DOCS,
)
"""All entries by code, in the order of the codes."""

OPT_IN_CODES = frozenset(code for code, doc in DIAGNOSTIC_DOCS.items() if doc.opt_in)

_CODE_OF_NAME = {doc.name: code for code, doc in DIAGNOSTIC_DOCS.items()}


def find_diagnostic_doc(code_or_name: str) -> DiagnosticDoc | None:
    """The entry with this code (`PS210`, case-insensitive) or name (`unknown-name`)."""
    return DIAGNOSTIC_DOCS.get(_CODE_OF_NAME.get(code_or_name.lower(), code_or_name.upper()))


TEXT_CHARACTERS_MAX = 1_000
"""Of a message, a label, a help or a note."""


def make_diagnostic(
    code: str,
    message: str,
    span: Span | None,
    *,
    label: str = "",
    help: str = "",  # noqa: A002 (the label in the output)
    notes: tuple[str, ...] = (),
    related: tuple[Label, ...] = (),
) -> Diagnostic:
    """A diagnostic with the name and severity of its code. Unprintable characters and line breaks are escaped, and of long texts
    (about a number of 100,000 digits) the beginning is kept: they go to the log at each edit."""
    doc = DIAGNOSTIC_DOCS[code]
    return Diagnostic(
        code,
        doc.name,
        doc.severity,
        _shown(message),
        span,
        _shown(label),
        _shown(help),
        tuple(map(_shown, notes)),
        tuple(Label(other.span, _shown(other.text)) for other in related),
    )


def _shown(text: str) -> str:
    return escape_to_line(text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[:TEXT_CHARACTERS_MAX]}...")
