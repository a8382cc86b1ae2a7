"""The error-tolerant lexer: words, numbers, strings, punctuation, comments and invalid characters.

The grammar's own lexer accepts only valid statements. This one accepts any text: the scanner uses it
to split a policy into statements before parsing, and the explainers use it to look around an error.
It never fails; every character belongs to exactly one token.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
      (?P<newline>\n)
    | (?P<space>[ \r\f]+)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<comment>\#[^\n]*)
    | (?P<string>"(?:\\.|[^"\\\n])*")
    | (?P<open_string>"[^\n]*)
    | (?P<number>[0-9]+(?:\.[0-9]+)?(?:%|[A-Za-z]+)?)
    | (?P<template>\{\{|\$\{|\$\()
    | (?P<brace>[{}])
    | (?P<open>[(\[])
    | (?P<close>[)\]])
    | (?P<tab>\t+)
    | (?P<slashes>//[^\n]*|/\*[^\n]*)
    | (?P<symbol>&&?|\|\|?|!(?!=))
    | (?P<quotes>'[^'\n]*'?|[‘’‚‛][^‘’\n]*[‘’]?|[“”„‟][^“”\n]*[“”]?)
    | (?P<sign>==|!=|<=|>=|[<>=+\-*/:,.%])
    | (?P<stray>.)
    """,
    re.VERBOSE | re.DOTALL,
)

TRIVIA_KINDS = frozenset({"newline", "space", "tab", "comment"})


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def raw_tokens(text: str, start: int, end: int) -> Iterator[tuple[str, str, int]]:
    """Kind, text and offset of each token between two offsets. Plain tuples: 256 KiB have 100,000."""
    for match in _TOKEN.finditer(text, start, end):
        kind = match.lastgroup
        assert kind is not None
        yield kind, match.group(), match.start()


def significant_tokens(text: str, start: int, end: int) -> list[Token]:
    """The tokens between two offsets, without spaces and comments."""
    return [Token(*raw) for raw in raw_tokens(text, start, end) if raw[0] not in TRIVIA_KINDS]
