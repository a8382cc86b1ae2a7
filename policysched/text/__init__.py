"""Source texts, spans, diagnostics and their renderers.

Independent of the policy language: a `Diagnostic` is a code, a severity, a span and messages. All commands and events use
the same renderers, for terminals (`render_text`) and for tools (`render_machine`).
"""

from policysched.text.diagnostic import Diagnostic, Label, Severity
from policysched.text.source import Origin, Position, Source, Span

__all__ = ["Diagnostic", "Label", "Origin", "Position", "Severity", "Source", "Span"]
