"""Why the grammar did not accept a statement, in the words of its author.

The grammar says where it stopped and what could have stood there. Each function of `EXPLANATIONS` knows one mistake
that people make; the first that recognises its own answers. To add one: a function, its code in `lang.rules_syntax`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from lark.exceptions import UnexpectedInput, UnexpectedToken

from policysched.lang.parse.build import Reading
from policysched.lang.parse.tokens import Token, significant_tokens
from policysched.lang.parse.words import (
    CLAUSES,
    COMPARISONS,
    OPERATOR_WORDS,
    SIGN_OF_TERMINAL,
    STATEMENTS,
    UNIT_WORDS,
    VALUE_STARTS,
    WORD_OF_TERMINAL,
)
from policysched.lang.rules import diagnostic
from policysched.text import Diagnostic, Label, Span

_CLOSER = {"(": ")", "[": "]", "{": "}"}
_KEY = re.compile(r"[^\]\s\"]+")
_VALUE_WORDS = frozenset((*CLAUSES, *OPERATOR_WORDS, "by", "default", "recover", "for"))
"""Words behind which a value stands."""


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
            if token.text in _CLOSER:
                opened.append(token)
            elif opened and token.text == _CLOSER[opened[-1].text]:
                opened.pop()
        return opened


_BRACED = frozenset({"metric", "state", "record", "resource", "outage", "preemption", "layer"})

Explanation = Callable[[Trouble], Diagnostic | None]


def explain(error: UnexpectedInput, reading: Reading, keyword: str) -> Diagnostic:
    """One diagnostic for one statement that the grammar did not accept. `keyword` is what the statement began with."""
    tokens = significant_tokens(reading.source.text, reading.start, reading.end)
    offset = reading.end
    if not isinstance(error, UnexpectedToken) or error.token.type != "$END":
        where: object = error.pos_in_stream
        assert isinstance(where, int), f"what Lark raises here has a place: {error!r}"
        offset = where
    at = next((index for index, token in enumerate(tokens) if token.end > offset), len(tokens))
    accepts = frozenset(error.interactive_parser.accepts())  # type: ignore[no-untyped-call]
    trouble = Trouble(reading, keyword, tokens, at, accepts)
    for explanation in EXPLANATIONS:
        found = explanation(trouble)
        if found is not None:
            return found
    return _unexpected(trouble)


# ── numbers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _bad_number(trouble: Trouble) -> Diagnostic | None:
    found, number = trouble.found, trouble.before()
    if found is None:
        return None
    if found.text == "." and (digits := _next(trouble)) is not None and digits.kind == "number":
        return _number(trouble, found, digits, f"0.{digits.text}", "a number begins with a digit")
    unit = number
    if (
        unit is not None
        and unit.kind == "word"
        and (before := trouble.before(2)) is not None
        and before.kind == "number"
    ):
        # In braces `5 min` reads as the value 5 and a parameter `min`; the mistake shows one token later.
        if before.text[-1].isdigit() and unit.text in UNIT_WORDS and _touching_line(trouble, before, unit):
            meant = before.text + UNIT_WORDS[unit.text]
            return _number(trouble, before, unit, meant, "a unit follows its number without a space")
        return None
    if number is None or number.kind != "number":
        return None
    bare = number.text[-1].isdigit()
    if found.text == "%" and bare:
        return _number(trouble, number, found, f"{number.text}%", "a unit follows its number without a space")
    if found.kind == "word" and found.text in UNIT_WORDS and bare:
        meant = number.text + UNIT_WORDS[found.text]
        return _number(trouble, number, found, meant, "a unit follows its number without a space")
    if (
        found.text == ","
        and (rest := _next(trouble)) is not None
        and rest.kind == "number"
        and rest.start == found.end
    ):
        return _number(trouble, number, rest, f"{number.text}.{rest.text}", "the decimal sign is a point")
    if found.start == number.end and (found.kind in ("word", "number") or found.text == "."):
        plain = (number.text + found.text).replace("_", "")
        mended = plain if plain.isdigit() else None
        return _number(trouble, number, found, mended, "digits, at most one point, then a unit")
    return None


def _number(trouble: Trouble, first: Token, last: Token, mended: str | None, why: str) -> Diagnostic:
    span = trouble.span(first, last)
    return diagnostic(
        "PS104",
        f"`{span.text}` is not a number",
        span,
        label=why,
        help=f"write `{mended}`" if mended else "write it out, such as `1000` or `1.5Gi`",
    )


def _touching_line(trouble: Trouble, first: Token, second: Token) -> bool:
    return "\n" not in trouble.reading.source.text[first.end : second.start]


def _next(trouble: Trouble, steps: int = 1) -> Token | None:
    index = trouble.at + steps
    return trouble.tokens[index] if index < len(trouble.tokens) else None


# ── signs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _equals_sign(trouble: Trouble) -> Diagnostic | None:
    found = trouble.found
    if found is None:
        return None
    before = trouble.before()
    named = before is not None and before.kind == "word" and before.text not in _VALUE_WORDS
    if found.text == "==" and ("EQUAL" in trouble.accepts or (trouble.wants_value and named)):
        return diagnostic(
            "PS110",
            "`==` compares; a value is given with `=`",
            trouble.span(found),
            label="one `=` too many",
            help="write `=`",
        )
    if found.text == "=" and "EQ" in trouble.accepts:
        return diagnostic(
            "PS110",
            "`=` gives a value; to compare, write `==`",
            trouble.span(found),
            label="one `=` too few",
            help="write `==`",
        )
    return None


def _unquoted_key(trouble: Trouble) -> Diagnostic | None:
    found, bracket = trouble.found, trouble.before()
    if found is None or bracket is None or trouble.wants_value:
        return None
    if trouble.accepts == {"RSQB"} and bracket.kind == "word" and bracket.end == found.start:
        found, bracket = bracket, trouble.before(2)  # `[app.kubernetes.io/name]` reads as a name at first
        if bracket is None or bracket.text != "[":
            return None
    elif bracket.text != "[" or "STRING" not in trouble.accepts:
        return None
    source = trouble.reading.source
    key = _KEY.match(source.text, found.start, trouble.reading.end)
    text = key.group() if key is not None else found.text
    return diagnostic(
        "PS112",
        f"the key `{text}` is not in quotes",
        Span(source, found.start, found.start + len(text)),
        label="not quoted",
        help=f'write `["{text}"]`',
    )


def _trailing_comma(trouble: Trouble) -> Diagnostic | None:
    found, comma = trouble.found, trouble.before()
    if comma is None or comma.text != ",":
        return None
    if found is None or found.text in ")]}" or found.text in CLAUSES:
        return diagnostic(
            "PS115",
            "a comma with nothing behind it",
            trouble.span(comma),
            label="separates nothing",
            help="take the comma out",
        )
    return None


def _comma_between_clauses(trouble: Trouble) -> Diagnostic | None:
    found = trouble.found
    if found is None or found.text != "," or "COMMA" in trouble.accepts or trouble.open_brackets():
        return None
    return diagnostic(
        "PS101",
        "a comma cannot stand here",
        trouble.span(found),
        label="not expected",
        help="the parts of a statement follow each other without commas; take it out",
    )


def _chained_comparison(trouble: Trouble) -> Diagnostic | None:
    found = trouble.found
    if found is None or found.text not in (*COMPARISONS, "in") or "AND" not in trouble.accepts:
        return None
    return diagnostic(
        "PS128",
        "comparisons cannot follow each other",
        trouble.span(found),
        label="the second comparison",
        help="write `a < b and b < c` instead of `a < b < c`",
    )


def _order_before_key(trouble: Trouble) -> Diagnostic | None:
    found, order = trouble.found, trouble.before()
    if trouble.keyword != "queue" or order is None or order.text not in ("asc", "desc") or trouble.at < 2:
        return None
    if found is None or found.kind not in ("word", "open"):
        return None
    return diagnostic(
        "PS116",
        f"`{order.text}` stands before what it orders",
        trouble.span(order),
        label="belongs behind",
        help=f"write `{_up_to_comma(trouble)} {order.text}`",
    )


def _up_to_comma(trouble: Trouble) -> str:
    """The source from the token found to the next comma or the end of the statement."""
    end = next(
        (token.start for token in trouble.tokens[trouble.at :] if token.text == ","), trouble.reading.end
    )
    return trouble.reading.source.text[trouble.tokens[trouble.at].start : end].strip()


# ── what is missing ────────────────────────────────────────────────────────────────────────────────────────────────


def _missing_value(trouble: Trouble) -> Diagnostic | None:
    """Nothing, or something that begins no value, where one has to stand."""
    found, before = trouble.found, trouble.before()
    if before is None:
        return None
    if trouble.wants_value:
        return _no_value_behind(trouble, before)
    swallowed = trouble.before(2)
    if (
        found is not None
        and before.kind == "word"
        and before.text in _VALUE_WORDS
        and swallowed is not None
        and (swallowed.text in _VALUE_WORDS or swallowed.kind == "sign")
    ):
        # `when require x`: where a value has to stand, `require` was read as a name.
        return _no_value_behind(trouble, swallowed)
    return None


def _has_with_brackets(trouble: Trouble) -> Diagnostic | None:
    """`has(x)`, as a function of that name would be called."""
    found, before = trouble.found, trouble.before()
    if found is None or found.text != "(" or before is None or before.text != "has":
        return None
    return diagnostic(
        "PS101",
        "`has` is a word and no function",
        trouble.span(found),
        label="not expected",
        help='write it without brackets: `has node.labels["KEY"]`',
    )


def _no_value_behind(trouble: Trouble, before: Token) -> Diagnostic:
    return diagnostic(
        "PS109",
        f"a value is missing behind `{before.text}`",
        trouble.span(before),
        label="nothing follows that could be its value",
        help=f"write a value or a condition behind `{before.text}`",
    )


def _parameter_without_default(trouble: Trouble) -> Diagnostic | None:
    found, before = trouble.found, trouble.before()
    if trouble.keyword != "param" or "EQUAL" not in trouble.accepts or before is None:
        return None
    if found is not None and found.text not in ("range", "in"):
        return None
    return diagnostic(
        "PS109",
        "the parameter has no default",
        trouble.span(before),
        label="nothing follows that could be its value",
        help="every parameter has one: `param NAME: TYPE = DEFAULT range LOW..HIGH`",
    )


def _range_without_dots(trouble: Trouble) -> Diagnostic | None:
    found = trouble.found
    if trouble.keyword != "param" or "DOTS" not in trouble.accepts or found is None:
        return None
    return diagnostic(
        "PS101",
        f"`{found.text}` cannot stand between the ends of a range",
        trouble.span(found),
        label="`..` is expected",
        help="a range is written `range LOW..HIGH`, and holds both ends",
    )


def _closes_nothing(trouble: Trouble) -> Diagnostic | None:
    found = trouble.found
    if found is None or found.text not in (")", "]", "}"):
        return None
    opened = trouble.open_brackets()
    if opened and _CLOSER[opened[-1].text] == found.text:
        return None
    if opened:
        return _unclosed(trouble, opened[-1], f"`{found.text}` comes first")
    return diagnostic(
        "PS108",
        f"`{found.text}` closes nothing",
        trouble.span(found),
        label="no bracket is open that it could close",
        help="take it out, or open the bracket before",
    )


def _never_closed(trouble: Trouble) -> Diagnostic | None:
    """A bracket is open, could be closed here, and is not."""
    found, opened = trouble.found, trouble.open_brackets()
    if not opened or opened[-1].text == "{":
        return None
    closer = "RPAR" if opened[-1].text == "(" else "RSQB"
    if closer not in trouble.accepts and found is not None:
        return None
    if found is None:
        return _unclosed(trouble, opened[-1], "the statement ends first")
    if found.kind == "word" and (found.text in CLAUSES or found.text in STATEMENTS):
        return _unclosed(trouble, opened[-1], f"`{found.text}` comes first")
    return None


def _unclosed(trouble: Trouble, bracket: Token, why: str) -> Diagnostic:
    found = trouble.found
    related = () if found is None else (Label(trouble.span(found), why),)
    return diagnostic(
        "PS102",
        f"the `{bracket.text}` is never closed",
        trouble.span(bracket),
        label="opened here",
        help=f"close it with `{_CLOSER[bracket.text]}`",
        related=related,
    )


def _no_block(trouble: Trouble) -> Diagnostic | None:
    if trouble.keyword not in _BRACED or "LBRACE" not in trouble.accepts or trouble.open_brackets():
        return None
    if (
        trouble.keyword == "layer" and trouble.found is not None
    ):  # more likely something is wrong with its condition
        return None
    before = trouble.before()
    assert before is not None, "a statement begins with its keyword"
    return diagnostic(
        "PS131",
        f"a `{{` is missing in this {trouble.keyword}",
        trouble.span(before),
        label="`{` is expected behind this",
        help=f"write `{{` behind `{before.text}`, and `}}` at the end",
    )


def _no_type(trouble: Trouble) -> Diagnostic | None:
    name = trouble.before()
    if "COLON" not in trouble.accepts or name is None:
        return None
    example = {"let": "duration = 5m", "input": 'int = pod.labels["n"] ...', "metric": "ratio { ... }"}
    return diagnostic(
        "PS101",
        f"the type of `{name.text}` is missing",
        trouble.span(name),
        label="`:` and a type are expected behind this",
        help=f"write for instance `{trouble.keyword} {name.text}: {example.get(trouble.keyword, 'int')}`",
    )


# ── words ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _second_statement(trouble: Trouble) -> Diagnostic | None:
    found = trouble.found
    if found is None or found.text not in STATEMENTS or not trouble.can_end:
        return None
    return diagnostic(
        "PS127",
        f"`{found.text}` begins a statement in the middle of a line",
        trouble.span(found),
        label="a statement begins here",
        help="put it on a line of its own",
    )


def _misspelt_word(trouble: Trouble) -> Diagnostic | None:
    found = trouble.found
    if found is None or found.kind != "word":
        return None
    opened = trouble.open_brackets()
    if opened and opened[-1].text == "{":  # a parameter, whose names the grammar does not know
        return None
    words = sorted(
        {WORD_OF_TERMINAL[terminal] for terminal in trouble.accepts if terminal in WORD_OF_TERMINAL}
    )
    meant = get_close_matches(found.text.lower(), words, n=1, cutoff=0.6)
    if not meant or meant[0] == found.text:
        return None
    return diagnostic(
        "PS106",
        f"`{found.text}` is not a word that can stand here",
        trouble.span(found),
        label="unknown word",
        help=f"did you mean `{meant[0]}`?",
    )


def _begins_no_statement(trouble: Trouble) -> Diagnostic | None:
    """The statement before could have ended, and a line begins with something else than a keyword."""
    found = trouble.found
    if found is None or not trouble.can_end:
        return None
    text = trouble.reading.source.text
    if text[text.rfind("\n", 0, found.start) + 1 : found.start].strip():
        return None
    return diagnostic(
        "PS107",
        f"`{found.text}` begins no statement",
        trouble.span(found),
        label="neither a statement nor the rest of the one before",
        help=f"statements begin with one of: {', '.join(STATEMENTS)}",
    )


def _half_if(trouble: Trouble) -> Diagnostic | None:
    """`if` without `then` or `else`, and an `if` in the middle of an expression."""
    found, before = trouble.found, trouble.before()
    if before is not None and before.text == "if" and not trouble.wants_value:  # it was read as a name
        return diagnostic(
            "PS132",
            "an `if` in the middle of an expression stands in parentheses",
            trouble.span(before),
            label="where it ends could not be seen",
            help="write `(if CONDITION then VALUE else VALUE)`",
        )
    if trouble.wants_value or "ELSE_TEXT" in trouble.accepts:
        return None
    word = "then" if "THEN" in trouble.accepts else "else"
    opened = _open_if(trouble, word)
    if opened is None or word.upper() not in trouble.accepts:
        return None
    here = () if found is None else (Label(trouble.span(found), f"`{word}` is expected before this"),)
    return diagnostic(
        "PS132",
        f"the `if` has no `{word}`",
        trouble.span(opened),
        label=f"nothing says what {'follows from it' if word == 'then' else 'holds otherwise'}",
        help="write `if CONDITION then VALUE else VALUE`",
        related=here,
    )


def _open_if(trouble: Trouble, word: str) -> Token | None:
    """The innermost `if` whose `then` or `else` has not come."""
    opened: list[Token] = []
    for token in trouble.tokens[: trouble.at]:
        if token.text == "if":
            opened.append(token)
        elif token.text == word and opened:
            opened.pop()
    return opened[-1] if opened else None


def _else_without_text(trouble: Trouble) -> Diagnostic | None:
    found = trouble.found
    if found is None or found.text != "else" or "ELSE_TEXT" not in trouble.accepts:
        return None
    return diagnostic(
        "PS101",
        "`else` ends a rule with a text, and none follows",
        trouble.span(found),
        label='a text in `"` is expected behind this',
        help='write `else "why the node was refused"`',
    )


# ── anything else ──────────────────────────────────────────────────────────────────────────────────────────────────


def _unexpected(trouble: Trouble) -> Diagnostic:
    found, before = trouble.found, trouble.before()
    expected = _in_words(trouble)
    if found is None:
        last = trouble.tokens[-1]
        return diagnostic(
            "PS101",
            f"the statement ends too early: {expected} is missing",
            trouble.span(last),
            label=f"{expected} is expected behind this",
        )
    behind = f"behind `{before.text}` " if before is not None else ""
    return diagnostic(
        "PS101",
        f"`{found.text}` cannot stand here",
        trouble.span(found),
        label="not expected",
        help=f"{behind}{expected} can follow" if expected else "",
    )


def _in_words(trouble: Trouble) -> str:
    """What could have stood there: `a name`, `an operator or missing`; at most six things."""
    accepts = trouble.accepts
    things: list[str] = []
    if trouble.wants_value:
        things.append("a value")
    else:
        if accepts & {"NAME", "POLICY_NAME"}:
            things.append("a name")
        if "NUMBER" in accepts:
            things.append("a number")
        if "STRING" in accepts:
            things.append('a text in `"`')
        operators = accepts & {"PLUS", "AND", "EQ"}
        if operators:
            things.append("an operator")
        things.extend(
            f"`{SIGN_OF_TERMINAL[terminal]}`"
            for terminal in ("COLON", "EQUAL", "COMMA", "LPAR", "RPAR", "RSQB", "LBRACE", "RBRACE")
            if terminal in accepts
        )
        skipped = {word.upper() for word in OPERATOR_WORDS}
        words = (WORD_OF_TERMINAL[terminal] for terminal in accepts - skipped if terminal in WORD_OF_TERMINAL)
        things.extend(f"`{word}`" for word in sorted(set(words)))
    if "$END" in accepts:
        things.append("the end of the statement")
    if len(things) > 8:
        things = [*things[:7], "others"]
    return " or ".join((", ".join(things[:-1]), things[-1])) if len(things) > 1 else "".join(things)


EXPLANATIONS: tuple[Explanation, ...] = (
    _bad_number,  # first: `5 min` and `1,5` are read as other things
    _unquoted_key,
    _trailing_comma,  # before the missing value behind the comma
    _order_before_key,
    _equals_sign,
    _closes_nothing,  # before the missing value: `(a + ]`
    _never_closed,
    _parameter_without_default,
    _range_without_dots,
    _half_if,  # before the missing value: `x + if ...`
    _has_with_brackets,  # before the missing value, for `has` is read as a name there
    _missing_value,
    _no_block,
    _no_type,
    _chained_comparison,
    _second_statement,
    _comma_between_clauses,
    _misspelt_word,
    _else_without_text,
    _begins_no_statement,
)
