"""Turn a parser error into a diagnostic that explains the mistake.

The parser reports where it stopped and which terminals it expected. Each function of
`SYNTAX_ERROR_EXPLAINERS` (here, in `lexical_mistakes` and in `missing_parts`) recognizes one common
mistake; the first match wins. To add one, write a function, and document its code in
`lang.diagnostics.syntax_docs`.
"""

from collections.abc import Callable

from lark.exceptions import UnexpectedInput, UnexpectedToken

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.parse.foreign_syntax import (
    dashed_name,
    declared_without_type,
    equals_after_clause,
    foreign_branch,
    foreign_word,
    list_in_parentheses,
    method_call,
    negative_weight,
    prometheus_query,
    quote_in_string,
    rule_in_braces,
)
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
    pods_that_are_placed_anyway,
    trailing_comma,
    unquoted_key,
    unquoted_resource,
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
from policysched.lang.parse.tree_parts import ParseContext
from policysched.text import Diagnostic, Label
from policysched.text.suggestions import nearest_match

SyntaxErrorExplainer = Callable[[SyntaxFailure], Diagnostic | None]

_INAPPLICABLE_CLAUSES = {
    "filter": frozenset(SCORE_CLAUSES) - frozenset(FILTER_CLAUSES),
    "score": frozenset(FILTER_CLAUSES) - frozenset(SCORE_CLAUSES),
}
"""The grammar accepts any clause in any rule and `statement_checks` rejects the wrong ones, so they are not suggested."""

_RULE_VERBS = {"filter": ("require", "reject"), "score": ("higher", "lower", "prefer")}
"""The keyword that introduces the condition or value of a rule."""


def explain_syntax_error(error: UnexpectedInput, context: ParseContext, keyword: str) -> Diagnostic:
    """The diagnostic for a statement that the grammar does not accept. `keyword` begins the statement."""
    tokens = significant_tokens(context.source.text, context.start, context.end)
    offset = context.end
    if not isinstance(error, UnexpectedToken) or error.token.type != "$END":
        position: object = error.pos_in_stream
        assert isinstance(position, int), f"Lark error without a position: {error!r}"
        offset = position
    at = next((index for index, token in enumerate(tokens) if token.end > offset), len(tokens))
    accepts = frozenset(error.interactive_parser.accepts())  # type: ignore[no-untyped-call]
    failure = SyntaxFailure(context, keyword, tokens, at, accepts)
    for explain in SYNTAX_ERROR_EXPLAINERS:
        diagnostic = explain(failure)
        if diagnostic is not None:
            return diagnostic
    return _unexpected_token(failure)


# ── keywords ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _statement_mid_line(failure: SyntaxFailure) -> Diagnostic | None:
    unexpected = failure.unexpected_token
    if unexpected is None or unexpected.text not in STATEMENTS or not failure.expects_end:
        return None
    return make_diagnostic(
        "PS127",
        f"`{unexpected.text}` must begin on its own line",
        failure.span(unexpected),
        label="a new statement",
        help="insert a line break before it",
    )


def _misspelled_keyword(failure: SyntaxFailure) -> Diagnostic | None:
    unexpected = failure.unexpected_token
    if unexpected is None or unexpected.kind != "word":
        return None
    opened = failure.open_brackets()
    if opened and opened[-1].text == "{":  # the grammar does not know the names of parameters
        return None
    words = sorted(
        {
            KEYWORD_OF_TERMINAL[terminal]
            for terminal in failure.expected_terminals
            if terminal in KEYWORD_OF_TERMINAL
        }
    )
    match = nearest_match(unexpected.text.lower(), words)
    if match is None or match == unexpected.text:
        return None
    return make_diagnostic(
        "PS106",
        f"unexpected `{unexpected.text}`",
        failure.span(unexpected),
        label="unknown keyword",
        help=f"did you mean `{match}`?",
    )


def _not_a_statement(failure: SyntaxFailure) -> Diagnostic | None:
    """A line does not begin with a keyword, and the previous statement is complete."""
    unexpected = failure.unexpected_token
    if unexpected is None or not failure.expects_end:
        return None
    text = failure.context.source.text
    if text[text.rfind("\n", 0, unexpected.start) + 1 : unexpected.start].strip():
        return None
    return make_diagnostic(
        "PS107",
        f"expected a statement, found `{unexpected.text}`",
        failure.span(unexpected),
        label="neither a statement keyword nor a continuation of the previous statement",
        help=f"statements begin with one of: {', '.join(STATEMENTS)}",
    )


def _incomplete_if(failure: SyntaxFailure) -> Diagnostic | None:
    """An `if` without `then` or `else`, or an `if` that is an operand without parentheses."""
    unexpected, before = failure.unexpected_token, failure.previous_token()
    if (
        before is not None and before.text == "if" and not failure.expects_value
    ):  # the parser takes it for a name
        return make_diagnostic(
            "PS132",
            "an `if` that is an operand needs parentheses",
            failure.span(before),
            label="its end is ambiguous",
            help="write `(if CONDITION then VALUE else VALUE)`",
        )
    if failure.expects_value or "ELSE_TEXT" in failure.expected_terminals:
        return None
    word = "then" if "THEN" in failure.expected_terminals else "else"
    opened = _open_if(failure, word)
    if opened is None or word.upper() not in failure.expected_terminals:
        return None
    labels = (
        () if unexpected is None else (Label(failure.span(unexpected), f"expected `{word}` before this"),)
    )
    return make_diagnostic(
        "PS132",
        f"`if` without `{word}`",
        failure.span(opened),
        label=f"no value if the condition is {'true' if word == 'then' else 'false'}",
        help="write `if CONDITION then VALUE else VALUE`",
        related=labels,
    )


def _open_if(failure: SyntaxFailure, word: str) -> Token | None:
    """The innermost `if` whose `then` or `else` is still missing."""
    opened: list[Token] = []
    for token in failure.tokens[: failure.token_index]:
        if token.text == "if":
            opened.append(token)
        elif token.text == word and opened:
            opened.pop()
    return opened[-1] if opened else None


def _missing_rule_verb(failure: SyntaxFailure) -> Diagnostic | None:
    """A condition or value without its keyword: `filter small node.pods < 50`."""
    unexpected, verbs = failure.unexpected_token, _RULE_VERBS.get(failure.keyword)
    if (
        unexpected is None
        or verbs is None
        or verbs[0].upper() not in failure.expected_terminals
        or failure.open_brackets()
    ):
        return None
    if any(previous.text in verbs for previous in failure.tokens[: failure.token_index]):
        return None
    if unexpected.kind not in ("word", "number") and unexpected.text != "(":
        return None
    if failure.keyword == "score" and unexpected.kind == "number":
        message, replacement = "expected a keyword before the number", f"write `weight {unexpected.text}`"
    elif failure.keyword == "score":
        message = "expected `higher`, `lower` or `prefer`"
        replacement = "write `higher` or `lower` before a value, or `prefer` before a condition"
    else:
        message = "expected `require` or `reject`"
        replacement = (
            "write `require` before a condition that must hold, or `reject` before one that must not"
        )
    return make_diagnostic(
        "PS101", message, failure.span(unexpected), label="expected a keyword before this", help=replacement
    )


def _else_without_text(failure: SyntaxFailure) -> Diagnostic | None:
    unexpected = failure.unexpected_token
    if unexpected is None or unexpected.text != "else" or "ELSE_TEXT" not in failure.expected_terminals:
        return None
    return make_diagnostic(
        "PS101",
        "`else` does not follow a value",
        failure.span(unexpected),
        label="no value before this",
        help='for a message write `says "why the node is rejected"`',
    )


# ── fallback ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _unexpected_token(failure: SyntaxFailure) -> Diagnostic:
    unexpected, before = failure.unexpected_token, failure.previous_token()
    expected = _expected_tokens_text(failure)
    if unexpected is None:
        last = failure.tokens[-1]
        return make_diagnostic(
            "PS101",
            f"incomplete statement: expected {expected}",
            failure.span(last),
            label=f"expected {expected} after this",
        )
    after = f" after `{before.text}`" if before is not None else ""
    return make_diagnostic(
        "PS101",
        f"unexpected `{unexpected.text}`",
        failure.span(unexpected),
        label="unexpected",
        help=f"expected {expected}{after}" if expected else "",
    )


def _expected_tokens_text(failure: SyntaxFailure) -> str:
    """The expected tokens, such as `a name` or `an operator`; at most eight alternatives."""
    accepts = failure.expected_terminals
    alternatives: list[str] = []
    if failure.expects_value:
        alternatives.append("a value")
    else:
        if accepts & {"NAME", "POLICY_NAME"}:
            alternatives.append("a name")
        if "NUMBER" in accepts:
            alternatives.append("a number")
        if "STRING" in accepts:
            alternatives.append("a string")
        operators = accepts & {"PLUS", "AND", "EQ"}
        if operators:
            alternatives.append("an operator")
        alternatives.extend(
            f"`{SIGN_OF_TERMINAL[terminal]}`"
            for terminal in ("COLON", "EQUAL", "COMMA", "LPAR", "RPAR", "RSQB", "LBRACE", "RBRACE")
            if terminal in accepts
        )
        skipped = {word.upper() for word in OPERATOR_KEYWORDS}
        words = {
            KEYWORD_OF_TERMINAL[terminal] for terminal in accepts - skipped if terminal in KEYWORD_OF_TERMINAL
        }
        alternatives.extend(
            f"`{word}`" for word in sorted(words - _INAPPLICABLE_CLAUSES.get(failure.keyword, frozenset()))
        )
    if "$END" in accepts:
        alternatives.append("the end of the statement")
    if len(alternatives) > 8:
        alternatives = [*alternatives[:7], "another token"]
    return (
        " or ".join((", ".join(alternatives[:-1]), alternatives[-1]))
        if len(alternatives) > 1
        else "".join(alternatives)
    )


SYNTAX_ERROR_EXPLAINERS: tuple[SyntaxErrorExplainer, ...] = (
    foreign_branch,
    dashed_name,
    declared_without_type,
    equals_after_clause,
    rule_in_braces,
    negative_weight,
    method_call,
    quote_in_string,
    prometheus_query,
    list_in_parentheses,
    foreign_word,
    malformed_number,  # the parser reads `5 min` and `1,5` as something else
    unquoted_key,
    unquoted_resource,
    pods_that_are_placed_anyway,
    trailing_comma,  # before the missing value after the comma
    direction_before_key,
    wrong_equals_sign,
    unmatched_closing_bracket,  # before the missing value: `(a + ]`
    unclosed_bracket,
    parameter_without_default,
    range_without_dots,
    _incomplete_if,  # before the missing value: `x + if ...`
    has_called_as_function,  # before the missing value: `has` is read as a name there
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
