"""Diagnostics of the checker: names, types and units (`PS2xx`), logic (`PS3xx`) and operations (`PS4xx`)."""

from policysched.lang.diagnostics.diagnostic_doc import DiagnosticDoc
from policysched.lang.diagnostics.name_docs import NAME_DOCS
from policysched.lang.diagnostics.parameter_docs import PARAMETER_DOCS
from policysched.lang.diagnostics.warning_docs import WARNING_DOCS

CHECK_DOCS: tuple[DiagnosticDoc, ...] = (*NAME_DOCS, *PARAMETER_DOCS, *WARNING_DOCS)
