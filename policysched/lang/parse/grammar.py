"""The Lark parser, which parses one statement at a time.

The parser is built once per process, on first use, and builds the syntax tree while it parses.
Computing its tables takes 0.15 s; loading them from the cache (`data_files.cached_file`) takes a tenth
of that.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from lark import Lark, TextSlice, Token
from lark.exceptions import UnexpectedInput
from lark.lark import PostLex

from policysched.data_files import cached_file, data_file
from policysched.lang.parse.tree_builder import TreeBuilder
from policysched.lang.parse.tree_parts import ParseContext, parse_context

START_RULES = ("statement", "rule_statement", "layer_head", "canary_head")


class _NamesAlwaysLexed(PostLex):
    """Lets the lexer accept a name anywhere, so that `requires` is one wrong word, not `require` and `s`."""

    always_accept = ("NAME",)

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        return stream


def _retype_else(token: Token) -> Token:
    """Only a filter can end with a message; elsewhere `else "string"` is a value."""
    return token if parse_context.get().is_filter else Token.new_borrow_pos("ELSE", token.value, token)


@cache
def lark_parser() -> Lark:
    callbacks: dict[str, Callable[[Token], Token]] = {"ELSE_TEXT": _retype_else}
    with cached_file("grammar") as tables:
        return Lark(
            data_file("grammar", "policy.lark").read_text(encoding="utf-8"),
            parser="lalr",
            lexer="contextual",
            start=list(START_RULES),
            transformer=TreeBuilder(),
            postlex=_NamesAlwaysLexed(),
            lexer_callbacks=callbacks,
            maybe_placeholders=False,
            # Lark checks that the tables match this grammar, its own version and Python's, and rewrites
            # them if they do not or are corrupt.
            cache=False if tables is None else str(tables),
        )


def parse_with_grammar(start: str, text: str, context: ParseContext) -> Any:
    """Parse a part of `text` with the grammar rule `start`. Raises `UnexpectedInput` if it does not match."""
    token = parse_context.set(context)
    try:
        return lark_parser().parse(TextSlice(text, context.start, context.end), start=start)
    finally:
        parse_context.reset(token)


__all__ = ["START_RULES", "UnexpectedInput", "lark_parser", "parse_with_grammar"]
