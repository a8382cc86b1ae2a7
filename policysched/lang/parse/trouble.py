"""Where reading a statement stopped: what stands there, before it and behind it, and what the grammar would have taken."""

from dataclasses import dataclass

from policysched.lang.parse.build import Reading
from policysched.lang.parse.tokens import Token
from policysched.lang.parse.words import CLAUSES, OPERATOR_WORDS, VALUE_STARTS
from policysched.text import Span

VALUE_WORDS = frozenset((*CLAUSES, *OPERATOR_WORDS, "by", "default", "recover", "for"))
"""Words behind which a value stands."""
CLOSER = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class Trouble:
    """Where reading stopped. `tokens[at]` is the first that could not stand there; at the end `at` is their number."""

    reading: Reading
    keyword: str
    tokens: list[Token]
    at: int
    accepts: frozenset[str]  # terminals of the grammar that could have stood there

    @property
    def found(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def before(self, steps: int = 1) -> Token | None:
        """The token that many steps before the one found."""
        return self.tokens[self.at - steps] if self.at >= steps else None

    def span(self, token: Token, to: Token | None = None) -> Span:
        return Span(self.reading.source, token.start, (to or token).end)

    @property
    def wants_value(self) -> bool:
        return self.accepts >= VALUE_STARTS

    @property
    def can_end(self) -> bool:
        return "$END" in self.accepts

    def open_brackets(self) -> list[Token]:
        """Brackets that are open where reading stopped, outermost first."""
        opened: list[Token] = []
        for token in self.tokens[: self.at]:
            if token.text in CLOSER:
                opened.append(token)
            elif opened and token.text == CLOSER[opened[-1].text]:
                opened.pop()
        return opened

    def next(self, steps: int = 1) -> Token | None:
        """The token that many steps behind the one found."""
        index = self.at + steps
        return self.tokens[index] if index < len(self.tokens) else None

    def on_one_line(self, first: Token, second: Token) -> bool:
        return "\n" not in self.reading.source.text[first.end : second.start]

    def up_to_comma(self) -> str:
        """The source from the token found to the next comma or the end of the statement."""
        end = next((token.start for token in self.tokens[self.at :] if token.text == ","), self.reading.end)
        return self.reading.source.text[self.tokens[self.at].start : end].strip()
