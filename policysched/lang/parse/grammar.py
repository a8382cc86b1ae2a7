"""The grammar at work: one statement of a text at a time.

Lark's parser is built once a process, when the first statement is read, and makes the syntax tree while it reads.
Working out its tables takes 0.15 s; where the process keeps files (`resources.keep_files`), they are read in a tenth
of that.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from lark import Lark, TextSlice, Token
from lark.exceptions import UnexpectedInput
from lark.lark import PostLex

from policysched.lang.parse.build import Build, Reading, reading
from policysched.resources import kept_file, resource

STARTS = ("statement", "rule_statement", "layer_head")


class _WholeWords(PostLex):
    """Lets the lexer take a name anywhere: where none is allowed, `requires` is one wrong word, not `require` and `s`."""

    always_accept = ("NAME",)

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        return stream


def _else_in_a_rule(token: Token) -> Token:
    """Only a rule can end with a text; elsewhere `else "text"` is a value."""
    return token if reading.get().rule else Token.new_borrow_pos("ELSE", token.value, token)


@cache
def grammar() -> Lark:
    callbacks: dict[str, Callable[[Token], Token]] = {"ELSE_TEXT": _else_in_a_rule}
    with kept_file("grammar") as tables:
        return Lark(
            resource("grammar", "policy.lark").read_text(encoding="utf-8"),
            parser="lalr",
            lexer="contextual",
            start=list(STARTS),
            transformer=Build(),
            postlex=_WholeWords(),
            lexer_callbacks=callbacks,
            maybe_placeholders=False,
            # Lark looks whether they are of this grammar, its own version and Python's, and writes them anew where they
            # are not, or are broken.
            cache=False if tables is None else str(tables),
        )


def read(start: str, text: str, piece: Reading) -> Any:
    """What the grammar's rule `start` makes of a piece of `text`. Raises `UnexpectedInput` where it is not one."""
    token = reading.set(piece)
    try:
        return grammar().parse(TextSlice(text, piece.start, piece.end), start=start)
    finally:
        reading.reset(token)


__all__ = ["STARTS", "UnexpectedInput", "grammar", "read"]
