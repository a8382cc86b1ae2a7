"""`else "receiving {net_rx}, over {hot_link}"`: texts with values in them."""

import re

from policysched.lang.check.expressions import read
from policysched.lang.check.scope import TEXT, Scope
from policysched.lang.ir.constant_folding import fold
from policysched.lang.ir.expr import Expr
from policysched.lang.ir.program import Template
from policysched.lang.syntax import tree as s
from policysched.text import Span

_PART = re.compile(r'\.([A-Za-z_][A-Za-z0-9_]*)|\["([^"\]]*)"\]|\[([A-Za-z_][A-Za-z0-9_]*)\]')
_HEAD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACES = re.compile(r"\{([^{}]*)\}")


def template(scope: Scope, node: s.StringLit) -> Template | None:
    """The text and its placeholders, each a declared name or an attribute; None after a finding."""
    parts: list[str | Expr] = []
    sound = True
    end = 0
    for match in _BRACES.finditer(node.value):
        parts.append(node.value[end : match.start()])
        end = match.end()
        value = _placeholder(scope, node, match.group(1))
        sound = sound and value is not None
        if value is not None:
            parts.append(value)
    parts.append(node.value[end:])
    if any(isinstance(part, str) and ("{" in part or "}" in part) for part in parts):
        scope.report("PS236", "a brace without its partner", node.span, help="a placeholder is `{name}`")
        return None
    return Template(node.value, tuple(part for part in parts if part != "")) if sound else None


def _placeholder(scope: Scope, node: s.StringLit, inner: str) -> Expr | None:
    span = _place(node.span, inner)
    reference = _reference(inner.strip(), span)
    if reference is None:
        scope.report(
            "PS236",
            f"`{{{inner}}}` is no placeholder",
            span,
            label="not a name or an attribute",
            help="such as `{net_rx}` or `{node.free.cpu}`; compute a value with `let` or in the condition",
        )
        return None
    found = read(scope, reference, TEXT)
    return None if found is None else fold(found)


def _place(span: Span, inner: str) -> Span:
    """Where the placeholder stands; the whole text where escapes moved it."""
    at = span.text.find("{" + inner + "}")
    return span if at < 0 else Span(span.source, span.start + at + 1, span.start + at + 1 + len(inner))


def _reference(text: str, span: Span) -> s.Bare | s.Attribute | None:
    head = _HEAD.match(text)
    if head is None:
        return None
    parts: list[s.PathPart] = []
    at = head.end()
    while at < len(text):
        match = _PART.match(text, at)
        if match is None:
            return None
        name, key, constant = match.groups()
        parts.append(
            s.PathPart(name or constant or key or "", key is not None, span, named=constant is not None)
        )
        at = match.end()
    return s.Attribute(head.group(), tuple(parts), span) if parts else s.Bare(head.group(), span)
