"""Explain a missing part of a statement: a value, a bracket, a block or a type."""

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.parse.foreign_syntax import likely_type
from policysched.lang.parse.keywords import CLAUSES, STATEMENTS
from policysched.lang.parse.syntax_failure import CLOSING_BRACKETS, VALUE_KEYWORDS, SyntaxFailure
from policysched.lang.parse.tokens import Token
from policysched.text import Diagnostic, Label

_PARAMETER_KEYWORDS = ("param", "locked")
_STATEMENTS_WITH_BLOCK = frozenset(
    {"metric", "state", "record", "resource", "quota", "outage", "preemption", "layer", "canary"}
)


def missing_value(failure: SyntaxFailure) -> Diagnostic | None:
    """The statement ends, or continues with something that is not a value, where a value is expected."""
    unexpected, before = failure.unexpected_token, failure.previous_token()
    if before is None:
        return None
    if failure.expects_value:
        return _missing_value_after(failure, before)
    swallowed = failure.previous_token(2)
    if (
        unexpected is not None
        and before.kind == "word"
        and before.text in VALUE_KEYWORDS
        and swallowed is not None
        and (swallowed.text in VALUE_KEYWORDS or swallowed.kind == "sign")
    ):
        # In `when require x`, the parser takes `require` for a name.
        return _missing_value_after(failure, swallowed)
    return None


def has_called_as_function(failure: SyntaxFailure) -> Diagnostic | None:
    """`has` is called like a function: `has(x)`."""
    unexpected, before = failure.unexpected_token, failure.previous_token()
    if unexpected is None or unexpected.text != "(" or before is None or before.text != "has":
        return None
    return make_diagnostic(
        "PS101",
        "`has` is an operator, not a function",
        failure.span(unexpected),
        label="unexpected `(`",
        help='remove the parentheses: `has node.labels["KEY"]`',
    )


def _missing_value_after(failure: SyntaxFailure, before: Token) -> Diagnostic:
    return make_diagnostic(
        "PS109",
        f"expected a value after `{before.text}`",
        failure.span(before),
        label="no value follows",
        help=f"add a value or a condition after `{before.text}`",
    )


def parameter_without_default(failure: SyntaxFailure) -> Diagnostic | None:
    unexpected, before = failure.unexpected_token, failure.previous_token()
    if (
        failure.keyword not in _PARAMETER_KEYWORDS
        or "EQUAL" not in failure.expected_terminals
        or before is None
    ):
        return None
    if unexpected is not None and unexpected.text not in ("range", "in"):
        return None
    return make_diagnostic(
        "PS109",
        "the parameter has no default",
        failure.span(before),
        label="no value follows",
        help="add a default: `param NAME: TYPE = DEFAULT range LOW..HIGH`",
    )


def range_without_dots(failure: SyntaxFailure) -> Diagnostic | None:
    unexpected = failure.unexpected_token
    if (
        failure.keyword not in _PARAMETER_KEYWORDS
        or "DOTS" not in failure.expected_terminals
        or unexpected is None
    ):
        return None
    return make_diagnostic(
        "PS101",
        f"expected `..`, found `{unexpected.text}`",
        failure.span(unexpected),
        label="between the bounds of a range",
        help="write `range LOW..HIGH`; both bounds are included",
    )


def unmatched_closing_bracket(failure: SyntaxFailure) -> Diagnostic | None:
    unexpected = failure.unexpected_token
    if unexpected is None or unexpected.text not in (")", "]", "}"):
        return None
    opened = failure.open_brackets()
    if opened and CLOSING_BRACKETS[opened[-1].text] == unexpected.text:
        return None
    if opened:
        return _unclosed_bracket_diagnostic(
            failure, opened[-1], f"`{unexpected.text}` comes before it is closed"
        )
    return make_diagnostic(
        "PS108",
        f"unmatched `{unexpected.text}`",
        failure.span(unexpected),
        label="no matching opening bracket",
        help="remove it, or add the missing opening bracket",
    )


def unclosed_bracket(failure: SyntaxFailure) -> Diagnostic | None:
    """An open bracket could be closed here, and is not."""
    unexpected, opened = failure.unexpected_token, failure.open_brackets()
    if not opened or opened[-1].text == "{":
        return None
    closer = "RPAR" if opened[-1].text == "(" else "RSQB"
    if closer not in failure.expected_terminals and unexpected is not None:
        return None
    if unexpected is None:
        return _unclosed_bracket_diagnostic(failure, opened[-1], "the statement ends before it is closed")
    if unexpected.kind == "word" and (unexpected.text in CLAUSES or unexpected.text in STATEMENTS):
        return _unclosed_bracket_diagnostic(
            failure, opened[-1], f"`{unexpected.text}` comes before it is closed"
        )
    return None


def _unclosed_bracket_diagnostic(failure: SyntaxFailure, bracket: Token, reason: str) -> Diagnostic:
    unexpected = failure.unexpected_token
    related = () if unexpected is None else (Label(failure.span(unexpected), reason),)
    return make_diagnostic(
        "PS102",
        f"unclosed `{bracket.text}`",
        failure.span(bracket),
        label="opened here",
        help=f"close it with `{CLOSING_BRACKETS[bracket.text]}`",
        related=related,
    )


def missing_block(failure: SyntaxFailure) -> Diagnostic | None:
    if (
        failure.keyword not in _STATEMENTS_WITH_BLOCK
        or "LBRACE" not in failure.expected_terminals
        or failure.open_brackets()
    ):
        return None
    if (
        failure.keyword in ("layer", "canary") and failure.unexpected_token is not None
    ):  # the error is more likely in its condition
        return None
    before = failure.previous_token()
    assert before is not None, "a statement begins with its keyword"
    return make_diagnostic(
        "PS131",
        f"expected `{{` in this {failure.keyword}",
        failure.span(before),
        label="expected `{` after this",
        help=f"add `{{` after `{before.text}`, and `}}` at the end",
    )


def missing_type(failure: SyntaxFailure) -> Diagnostic | None:
    name = failure.previous_token()
    if "COLON" not in failure.expected_terminals or name is None:
        return None
    unexpected = failure.unexpected_token
    value = failure.next_token() if unexpected is not None and unexpected.text == "=" else None
    example = {
        "let": "duration = 5m" if value is None else f"{likely_type(value)} = {value.text}",
        "input": 'int = pod.labels["n"] ...',
        "metric": "ratio { ... }",
    }
    return make_diagnostic(
        "PS101",
        f"the type of `{name.text}` is missing",
        failure.span(name),
        label="expected `:` and a type after this",
        help=f"for example `{failure.keyword} {name.text}: {example.get(failure.keyword, 'int')}`",
    )
