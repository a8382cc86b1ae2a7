"""A parser error: the tokens around the position, and the terminals that the grammar expected."""

from dataclasses import dataclass

from policysched.lang.parse.keywords import CLAUSES, OPERATOR_KEYWORDS, VALUE_START_TERMINALS
from policysched.lang.parse.tokens import Token
from policysched.lang.parse.tree_parts import ParseContext
from policysched.text import Span

VALUE_KEYWORDS = frozenset((*CLAUSES, *OPERATOR_KEYWORDS, "by", "default", "recover", "for"))
"""Keywords that are followed by a value."""
CLOSING_BRACKETS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class SyntaxFailure:
    """Where parsing stopped: `tokens[token_index]` is the unexpected token; at the end there is none."""

    context: ParseContext
    keyword: str
    tokens: list[Token]
    token_index: int
    expected_terminals: frozenset[str]  # of the grammar

    @property
    def unexpected_token(self) -> Token | None:
        return self.tokens[self.token_index] if self.token_index < len(self.tokens) else None

    def previous_token(self, steps: int = 1) -> Token | None:
        """The token that many steps before the unexpected one."""
        return self.tokens[self.token_index - steps] if self.token_index >= steps else None

    def span(self, token: Token, to: Token | None = None) -> Span:
        return Span(self.context.source, token.start, (to or token).end)

    @property
    def expects_value(self) -> bool:
        return self.expected_terminals >= VALUE_START_TERMINALS

    @property
    def expects_end(self) -> bool:
        return "$END" in self.expected_terminals

    def open_brackets(self) -> list[Token]:
        """The brackets that are open where parsing stopped, outermost first."""
        opened: list[Token] = []
        for token in self.tokens[: self.token_index]:
            if token.text in CLOSING_BRACKETS:
                opened.append(token)
            elif opened and token.text == CLOSING_BRACKETS[opened[-1].text]:
                opened.pop()
        return opened

    def next_token(self, steps: int = 1) -> Token | None:
        """The token that many steps after the unexpected one."""
        index = self.token_index + steps
        return self.tokens[index] if index < len(self.tokens) else None

    def on_same_line(self, first: Token, second: Token) -> bool:
        return "\n" not in self.context.source.text[first.end : second.start]

    def text_to_comma(self) -> str:
        """The source from the unexpected token to the next comma or the end of the statement."""
        end = next(
            (token.start for token in self.tokens[self.token_index :] if token.text == ","), self.context.end
        )
        return self.context.source.text[self.tokens[self.token_index].start : end].strip()
