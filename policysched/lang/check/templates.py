"""Messages with placeholders: `says "receiving {net_rx}, over {hot_link}"`."""

import re

from policysched.lang.check.expressions import check_expression
from policysched.lang.check.scope import REASON_TEMPLATE, Scope
from policysched.lang.ir.constant_folding import fold_constants
from policysched.lang.ir.expr import Expr
from policysched.lang.ir.rules import MessageTemplate
from policysched.lang.parse.name_length import STRING_CHARACTERS_MAX
from policysched.lang.syntax import tree as s
from policysched.text import Span

MESSAGE_VALUES_MAX = 100
MESSAGE_CHARACTERS_MAX = 2_000
"""Each pending pod has its own message, and each node can have another."""
_PART = re.compile(r'\.([A-Za-z_][A-Za-z0-9_]*)|\["([^"\]]*)"\]|\[([A-Za-z_][A-Za-z0-9_]*)\]')
_HEAD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACES = re.compile(r"\{([^{}]*)\}")


def check_template(scope: Scope, node: s.StringLit) -> MessageTemplate | None:
    """The message and its placeholders, each a declared name or an attribute; None after a diagnostic."""
    parts: list[str | Expr] = []
    count = len(_BRACES.findall(node.value))
    if count > MESSAGE_VALUES_MAX:
        scope.report(
            "PS126",
            f"the message has {count} values, the limit is {MESSAGE_VALUES_MAX}",
            node.span,
            help="show only the values that decide",
        )
        return None
    if not check_message_length(scope, node):
        return None
    is_valid = True
    end = 0
    for match in _BRACES.finditer(node.value):
        parts.append(node.value[end : match.start()])
        end = match.end()
        value = _check_placeholder(scope, node, match.group(1))
        is_valid = is_valid and value is not None
        if value is not None:
            parts.append(value)
    parts.append(node.value[end:])
    if any(isinstance(part, str) and ("{" in part or "}" in part) for part in parts):
        scope.report(
            "PS236", "unmatched brace in a message", node.span, help="write a placeholder as `{name}`"
        )
        return None
    return MessageTemplate(node.value, tuple(part for part in parts if part != "")) if is_valid else None


def check_message_length(scope: Scope, node: s.StringLit) -> bool:
    """Whether the text for pods is short enough; reported if not."""
    length = len(node.value)
    if MESSAGE_CHARACTERS_MAX < length <= STRING_CHARACTERS_MAX:  # the parser reports longer ones
        scope.report(
            "PS126",
            f"the message has {length:,} characters, the limit is {MESSAGE_CHARACTERS_MAX:,}",
            node.span,
            help="shorten it: say what the pod needs",
        )
    return length <= MESSAGE_CHARACTERS_MAX


def _check_placeholder(scope: Scope, node: s.StringLit, inner: str) -> Expr | None:
    span = _placeholder_span(node.span, inner)
    reference = _parse_reference(inner.strip(), span)
    if reference is None:
        scope.report(
            "PS236",
            f"invalid placeholder `{{{inner}}}`",
            span,
            label="not a name or an attribute",
            help="for example `{net_rx}` or `{node.free.cpu}`; compute other values with `let`",
        )
        return None
    expr = check_expression(scope, reference, REASON_TEMPLATE)
    return None if expr is None else fold_constants(expr)


def _placeholder_span(span: Span, inner: str) -> Span:
    """The span of the placeholder; the whole string if escape sequences shift offsets."""
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
