"""`else "receiving {net_rx}, over {hot_link}"`: texts with values in them."""

import re

from policysched.lang.check.expressions import check_expression
from policysched.lang.check.scope import REASON_TEMPLATE, Scope
from policysched.lang.ir.constant_folding import fold_constants
from policysched.lang.ir.expr import Expr
from policysched.lang.ir.rules import MessageTemplate
from policysched.lang.syntax import tree as s
from policysched.text import Span

_PART = re.compile(r'\.([A-Za-z_][A-Za-z0-9_]*)|\["([^"\]]*)"\]|\[([A-Za-z_][A-Za-z0-9_]*)\]')
_HEAD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACES = re.compile(r"\{([^{}]*)\}")


def check_template(scope: Scope, node: s.StringLit) -> MessageTemplate | None:
    """The text and its placeholders, each a declared name or an attribute; None after a finding."""
    parts: list[str | Expr] = []
    sound = True
    end = 0
    for match in _BRACES.finditer(node.value):
        parts.append(node.value[end : match.start()])
        end = match.end()
        value = _check_placeholder(scope, node, match.group(1))
        sound = sound and value is not None
        if value is not None:
            parts.append(value)
    parts.append(node.value[end:])
    if any(isinstance(part, str) and ("{" in part or "}" in part) for part in parts):
        scope.report("PS236", "a brace without its partner", node.span, help="a placeholder is `{name}`")
        return None
    return MessageTemplate(node.value, tuple(part for part in parts if part != "")) if sound else None


def _check_placeholder(scope: Scope, node: s.StringLit, inner: str) -> Expr | None:
    span = _placeholder_span(node.span, inner)
    reference = _parse_reference(inner.strip(), span)
    if reference is None:
        scope.report(
            "PS236",
            f"`{{{inner}}}` is no placeholder",
            span,
            label="not a name or an attribute",
            help="such as `{net_rx}` or `{node.free.cpu}`; compute a value with `let` or in the condition",
        )
        return None
    found = check_expression(scope, reference, REASON_TEMPLATE)
    return None if found is None else fold_constants(found)


def _placeholder_span(span: Span, inner: str) -> Span:
    """Where the placeholder stands; the whole text where escapes moved it."""
    at = span.text.find("{" + inner + "}")
    return span if at < 0 else Span(span.source, span.start + at + 1, span.start + at + 1 + len(inner))


def _parse_reference(text: str, span: Span) -> s.NameExpr | s.AttributeExpr | None:
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
            s.PathPart(
                name or constant or key or "", key is not None, span, is_constant_key=constant is not None
            )
        )
        at = match.end()
    return s.AttributeExpr(head.group(), tuple(parts), span) if parts else s.NameExpr(head.group(), span)
