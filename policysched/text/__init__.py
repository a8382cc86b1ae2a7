"""Source texts, places in them, and what we have to say about those places.

Knows nothing of policies: a `Diagnostic` is a code, a severity, a span and words. The one renderer for people and the
ones for machines live here, so that every command and every event speaks alike.
"""

from policysched.text.diagnostic import Diagnostic, Label, Severity
from policysched.text.source import Origin, Position, Source, Span

__all__ = ["Diagnostic", "Label", "Origin", "Position", "Severity", "Source", "Span"]
