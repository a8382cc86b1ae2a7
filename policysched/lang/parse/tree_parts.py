"""From tokens of a statement to names, literals and spans; shared by the builders of the syntax tree."""

import re
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from lark import Token

from policysched.lang.syntax import tree as s
from policysched.text import Source, Span


@dataclass(frozen=True, slots=True)
class ParseContext:
    """The part of a source that is being parsed: one statement, without trailing comments."""

    source: Source
    start: int
    end: int
    is_filter: bool  # where `else "text"`, the older form of `says "text"`, can end it

    @property
    def span(self) -> Span:
        return Span(self.source, self.start, self.end)


parse_context: ContextVar[ParseContext] = ContextVar("parse_context")


@dataclass(frozen=True, slots=True)
class QuotaAmounts:
    amounts: tuple[s.QuotaAmountDecl, ...]
    span: Span


T = TypeVar("T")
Children = list[Any]
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}
_NUMBER = re.compile(r"([0-9.]+)(.*)")


def first_of_type(children: Children, kind: type[T]) -> T | None:
    return next((child for child in children if isinstance(child, kind)), None)


def start_of(child: Any) -> int:
    start = child.start_pos if isinstance(child, Token) else child.span.start
    assert isinstance(start, int)
    return start


def end_of(child: Any) -> int:
    end = child.end_pos if isinstance(child, Token) else child.span.end
    assert isinstance(end, int)
    return end


def span_of(children: Children) -> Span:
    """From the first child to the last; each is a token or a syntax node."""
    return Span(parse_context.get().source, start_of(children[0]), end_of(children[-1]))


def as_order_key(key: s.OrderKeyDecl | s.Expression) -> s.OrderKeyDecl:
    return key if isinstance(key, s.OrderKeyDecl) else s.OrderKeyDecl(key, False, key.span)


def identifier(token: Token) -> s.Identifier:
    return s.Identifier(str(token), span_of([token]))


def identifiers(children: Children) -> list[s.Identifier]:
    return [
        identifier(child)
        for child in children
        if isinstance(child, Token) and child.type in ("NAME", "POLICY_NAME")
    ]


def number_literal(token: Token) -> s.NumberLit:
    match = _NUMBER.match(token)
    assert match is not None, f"the grammar's NUMBER reads {token!r}"
    return s.NumberLit(match.group(1), match.group(2), span_of([token]))


def weight_value(token: Token) -> s.NumberLit | s.NameExpr:
    return number_literal(token) if token.type == "NUMBER" else s.NameExpr(str(token), span_of([token]))


def string_literal(token: Token) -> s.StringLit:
    return s.StringLit(
        _ESCAPE.sub(lambda m: _ESCAPED.get(m.group(1), m.group()), token[1:-1]), span_of([token])
    )


@dataclass(frozen=True, slots=True)
class UnitClause:
    text: s.StringLit
    span: Span


@dataclass(frozen=True, slots=True)
class PathClause:
    path: s.StringLit
    span: Span


@dataclass(frozen=True, slots=True)
class ParsedBlock:
    params: tuple[s.Param | s.ParamBlock, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class CanaryHead:
    name: s.Identifier
    share: s.Expression
    key: s.Expression
    when: s.WhenClause | None
    guard: s.CanaryGuard


@dataclass(frozen=True, slots=True)
class LayerHead:
    name: s.Identifier
    condition: s.Expression
