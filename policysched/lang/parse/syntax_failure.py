"""Where reading a statement stopped: what stands there, before it and behind it, and what the grammar would have taken."""

from dataclasses import dataclass

from policysched.lang.parse.keywords import CLAUSES, OPERATOR_KEYWORDS, VALUE_START_TERMINALS
from policysched.lang.parse.tokens import Token
from policysched.lang.parse.tree_builder import ParseContext
from policysched.text import Span

VALUE_KEYWORDS = frozenset((*CLAUSES, *OPERATOR_KEYWORDS, "by", "default", "recover", "for"))
"""Words behind which a value stands."""
CLOSING_BRACKETS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class SyntaxFailure:
    """Where reading stopped. `tokens[at]` is the first that could not stand there; at the end `token_index` is their number."""

    context: ParseContext
    keyword: str
    tokens: list[Token]
    token_index: int
    expected_terminals: frozenset[str]  # terminals of the grammar that could have stood there

    @property
    def unexpected_token(self) -> Token | None:
        return self.tokens[self.token_index] if self.token_index < len(self.tokens) else None

    def previous_token(self, steps: int = 1) -> Token | None:
        """The token that many steps before the one found."""
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
        """Brackets that are open where reading stopped, outermost first."""
        opened: list[Token] = []
        for token in self.tokens[: self.token_index]:
            if token.text in CLOSING_BRACKETS:
                opened.append(token)
            elif opened and token.text == CLOSING_BRACKETS[opened[-1].text]:
                opened.pop()
        return opened

    def next_token(self, steps: int = 1) -> Token | None:
        """The token that many steps behind the one found."""
        index = self.token_index + steps
        return self.tokens[index] if index < len(self.tokens) else None

    def on_same_line(self, first: Token, second: Token) -> bool:
        return "\n" not in self.context.source.text[first.end : second.start]

    def text_to_comma(self) -> str:
        """The source from the token found to the next comma or the end of the statement."""
        end = next(
            (token.start for token in self.tokens[self.token_index :] if token.text == ","), self.context.end
        )
        return self.context.source.text[self.tokens[self.token_index].start : end].strip()
