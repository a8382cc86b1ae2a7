"""Why the grammar did not accept a statement, in the words of its author.

The grammar says where it stopped and what could have stood there. Each function of `SYNTAX_ERROR_EXPLAINERS` (here, in
`misread` and in `incomplete`) knows one mistake that people make; the first that recognises its own answers. To add one: a function, its code in `lang.diagnostics.syntax_docs`.
"""

from collections.abc import Callable
from difflib import get_close_matches

from lark.exceptions import UnexpectedInput, UnexpectedToken

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.parse.keywords import (
    FILTER_CLAUSES,
    KEYWORD_OF_TERMINAL,
    OPERATOR_KEYWORDS,
    SCORE_CLAUSES,
    SIGN_OF_TERMINAL,
    STATEMENTS,
)
from policysched.lang.parse.lexical_mistakes import (
    chained_comparison,
    comma_between_clauses,
    direction_before_key,
    malformed_number,
    trailing_comma,
    unquoted_key,
    wrong_equals_sign,
)
from policysched.lang.parse.missing_parts import (
    has_called_as_function,
    missing_block,
    missing_type,
    missing_value,
    parameter_without_default,
    range_without_dots,
    unclosed_bracket,
    unmatched_closing_bracket,
)
from policysched.lang.parse.syntax_failure import SyntaxFailure
from policysched.lang.parse.tokens import Token, significant_tokens
from policysched.lang.parse.tree_builder import ParseContext
from policysched.text import Diagnostic, Label

SyntaxErrorExplainer = Callable[[SyntaxFailure], Diagnostic | None]

_INAPPLICABLE_CLAUSES = {
    "filter": frozenset(SCORE_CLAUSES) - frozenset(FILTER_CLAUSES),
    "score": frozenset(FILTER_CLAUSES) - frozenset(SCORE_CLAUSES),
}
"""The grammar takes any clause in any rule, and `shape` refuses what is of the other kind: so it is not offered, either."""

_RULE_VERBS = {"filter": ("require", "reject"), "score": ("higher", "lower", "prefer")}
"""One of these says what the condition or the value of such a rule is for."""


def explain_syntax_error(error: UnexpectedInput, reading: ParseContext, keyword: str) -> Diagnostic:
    """One diagnostic for one statement that the grammar did not accept. `keyword` is what the statement began with."""
    tokens = significant_tokens(reading.source.text, reading.start, reading.end)
    offset = reading.end
    if not isinstance(error, UnexpectedToken) or error.token.type != "$END":
        where: object = error.pos_in_stream
        assert isinstance(where, int), f"what Lark raises here has a place: {error!r}"
        offset = where
    at = next((index for index, token in enumerate(tokens) if token.end > offset), len(tokens))
    accepts = frozenset(error.interactive_parser.accepts())  # type: ignore[no-untyped-call]
    trouble = SyntaxFailure(reading, keyword, tokens, at, accepts)
    for explanation in SYNTAX_ERROR_EXPLAINERS:
        found = explanation(trouble)
        if found is not None:
            return found
    return _unexpected_token(trouble)


# ── words ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _statement_mid_line(trouble: SyntaxFailure) -> Diagnostic | None:
    found = trouble.unexpected_token
    if found is None or found.text not in STATEMENTS or not trouble.expects_end:
        return None
    return make_diagnostic(
        "PS127",
        f"`{found.text}` begins a statement in the middle of a line",
        trouble.span(found),
        label="a statement begins here",
        help="put it on a line of its own",
    )


def _misspelled_keyword(trouble: SyntaxFailure) -> Diagnostic | None:
    found = trouble.unexpected_token
    if found is None or found.kind != "word":
        return None
    opened = trouble.open_brackets()
    if opened and opened[-1].text == "{":  # a parameter, whose names the grammar does not know
        return None
    words = sorted(
        {
            KEYWORD_OF_TERMINAL[terminal]
            for terminal in trouble.expected_terminals
            if terminal in KEYWORD_OF_TERMINAL
        }
    )
    meant = get_close_matches(found.text.lower(), words, n=1, cutoff=0.6)
    if not meant or meant[0] == found.text:
        return None
    return make_diagnostic(
        "PS106",
        f"`{found.text}` is not a word that can stand here",
        trouble.span(found),
        label="unknown word",
        help=f"did you mean `{meant[0]}`?",
    )


def _not_a_statement(trouble: SyntaxFailure) -> Diagnostic | None:
    """The statement before could have ended, and a line begins with something else than a keyword."""
    found = trouble.unexpected_token
    if found is None or not trouble.expects_end:
        return None
    text = trouble.context.source.text
    if text[text.rfind("\n", 0, found.start) + 1 : found.start].strip():
        return None
    return make_diagnostic(
        "PS107",
        f"`{found.text}` begins no statement",
        trouble.span(found),
        label="neither a statement nor the rest of the one before",
        help=f"statements begin with one of: {', '.join(STATEMENTS)}",
    )


def _incomplete_if(trouble: SyntaxFailure) -> Diagnostic | None:
    """`if` without `then` or `else`, and an `if` in the middle of an expression."""
    found, before = trouble.unexpected_token, trouble.previous_token()
    if before is not None and before.text == "if" and not trouble.expects_value:  # it was read as a name
        return make_diagnostic(
            "PS132",
            "an `if` in the middle of an expression stands in parentheses",
            trouble.span(before),
            label="where it ends could not be seen",
            help="write `(if CONDITION then VALUE else VALUE)`",
        )
    if trouble.expects_value or "ELSE_TEXT" in trouble.expected_terminals:
        return None
    word = "then" if "THEN" in trouble.expected_terminals else "else"
    opened = _open_if(trouble, word)
    if opened is None or word.upper() not in trouble.expected_terminals:
        return None
    here = () if found is None else (Label(trouble.span(found), f"`{word}` is expected before this"),)
    return make_diagnostic(
        "PS132",
        f"the `if` has no `{word}`",
        trouble.span(opened),
        label=f"nothing says what {'follows from it' if word == 'then' else 'holds otherwise'}",
        help="write `if CONDITION then VALUE else VALUE`",
        related=here,
    )


def _open_if(trouble: SyntaxFailure, word: str) -> Token | None:
    """The innermost `if` whose `then` or `else` has not come."""
    opened: list[Token] = []
    for token in trouble.tokens[: trouble.token_index]:
        if token.text == "if":
            opened.append(token)
        elif token.text == word and opened:
            opened.pop()
    return opened[-1] if opened else None


def _missing_rule_verb(trouble: SyntaxFailure) -> Diagnostic | None:
    """`filter small node.pods < 50`: a condition or a value, and nothing says what it is for."""
    found, verbs = trouble.unexpected_token, _RULE_VERBS.get(trouble.keyword)
    if (
        found is None
        or verbs is None
        or verbs[0].upper() not in trouble.expected_terminals
        or trouble.open_brackets()
    ):
        return None
    if any(token.text in verbs for token in trouble.tokens[: trouble.token_index]):
        return None
    if found.kind not in ("word", "number") and found.text != "(":
        return None
    if trouble.keyword == "score" and found.kind == "number":
        message, mended = "nothing says what this number is", f"write `weight {found.text}`"
    elif trouble.keyword == "score":
        message = "nothing says what is better: more of this, or less"
        mended = "write `higher` or `lower` before a value, or `prefer` before a condition"
    else:
        message = "nothing says whether this must hold, or must not"
        mended = "write `require` before what must hold, or `reject` before what must not"
    return make_diagnostic(
        "PS101", message, trouble.span(found), label="a word is missing before this", help=mended
    )


def _else_without_text(trouble: SyntaxFailure) -> Diagnostic | None:
    found = trouble.unexpected_token
    if found is None or found.text != "else" or "ELSE_TEXT" not in trouble.expected_terminals:
        return None
    return make_diagnostic(
        "PS101",
        "`else` ends a rule with a text, and none follows",
        trouble.span(found),
        label='a text in `"` is expected behind this',
        help='write `else "why the node was refused"`',
    )


# ── anything else ──────────────────────────────────────────────────────────────────────────────────────────────────


def _unexpected_token(trouble: SyntaxFailure) -> Diagnostic:
    found, before = trouble.unexpected_token, trouble.previous_token()
    expected = _expected_tokens_text(trouble)
    if found is None:
        last = trouble.tokens[-1]
        return make_diagnostic(
            "PS101",
            f"the statement ends too early: {expected} is missing",
            trouble.span(last),
            label=f"{expected} is expected behind this",
        )
    behind = f"behind `{before.text}` " if before is not None else ""
    return make_diagnostic(
        "PS101",
        f"`{found.text}` cannot stand here",
        trouble.span(found),
        label="not expected",
        help=f"{behind}{expected} can follow" if expected else "",
    )


def _expected_tokens_text(trouble: SyntaxFailure) -> str:
    """What could have stood there: `a name`, `an operator or missing`; at most six things."""
    accepts = trouble.expected_terminals
    things: list[str] = []
    if trouble.expects_value:
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
        skipped = {word.upper() for word in OPERATOR_KEYWORDS}
        words = {
            KEYWORD_OF_TERMINAL[terminal] for terminal in accepts - skipped if terminal in KEYWORD_OF_TERMINAL
        }
        things.extend(
            f"`{word}`" for word in sorted(words - _INAPPLICABLE_CLAUSES.get(trouble.keyword, frozenset()))
        )
    if "$END" in accepts:
        things.append("the end of the statement")
    if len(things) > 8:
        things = [*things[:7], "others"]
    return " or ".join((", ".join(things[:-1]), things[-1])) if len(things) > 1 else "".join(things)


SYNTAX_ERROR_EXPLAINERS: tuple[SyntaxErrorExplainer, ...] = (
    malformed_number,  # first: `5 min` and `1,5` are read as other things
    unquoted_key,
    trailing_comma,  # before the missing value behind the comma
    direction_before_key,
    wrong_equals_sign,
    unmatched_closing_bracket,  # before the missing value: `(a + ]`
    unclosed_bracket,
    parameter_without_default,
    range_without_dots,
    _incomplete_if,  # before the missing value: `x + if ...`
    has_called_as_function,  # before the missing value, for `has` is read as a name there
    missing_value,
    missing_block,
    missing_type,
    chained_comparison,
    _statement_mid_line,
    comma_between_clauses,
    _misspelled_keyword,
    _else_without_text,
    _missing_rule_verb,
    _not_a_statement,
)
