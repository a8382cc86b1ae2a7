"""What is missing from a statement: a value, a bracket, a block, a type."""

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.parse.keywords import CLAUSES, STATEMENTS
from policysched.lang.parse.syntax_failure import CLOSING_BRACKETS, VALUE_KEYWORDS, SyntaxFailure
from policysched.lang.parse.tokens import Token
from policysched.text import Diagnostic, Label

_STATEMENTS_WITH_BLOCK = frozenset({"metric", "state", "record", "resource", "outage", "preemption", "layer"})


def missing_value(trouble: SyntaxFailure) -> Diagnostic | None:
    """Nothing, or something that begins no value, where one has to stand."""
    found, before = trouble.unexpected_token, trouble.previous_token()
    if before is None:
        return None
    if trouble.expects_value:
        return _missing_value_after(trouble, before)
    swallowed = trouble.previous_token(2)
    if (
        found is not None
        and before.kind == "word"
        and before.text in VALUE_KEYWORDS
        and swallowed is not None
        and (swallowed.text in VALUE_KEYWORDS or swallowed.kind == "sign")
    ):
        # `when require x`: where a value has to stand, `require` was read as a name.
        return _missing_value_after(trouble, swallowed)
    return None


def has_called_as_function(trouble: SyntaxFailure) -> Diagnostic | None:
    """`has(x)`, as a function of that name would be called."""
    found, before = trouble.unexpected_token, trouble.previous_token()
    if found is None or found.text != "(" or before is None or before.text != "has":
        return None
    return make_diagnostic(
        "PS101",
        "`has` is a word and no function",
        trouble.span(found),
        label="not expected",
        help='write it without brackets: `has node.labels["KEY"]`',
    )


def _missing_value_after(trouble: SyntaxFailure, before: Token) -> Diagnostic:
    return make_diagnostic(
        "PS109",
        f"a value is missing behind `{before.text}`",
        trouble.span(before),
        label="nothing follows that could be its value",
        help=f"write a value or a condition behind `{before.text}`",
    )


def parameter_without_default(trouble: SyntaxFailure) -> Diagnostic | None:
    found, before = trouble.unexpected_token, trouble.previous_token()
    if trouble.keyword != "param" or "EQUAL" not in trouble.expected_terminals or before is None:
        return None
    if found is not None and found.text not in ("range", "in"):
        return None
    return make_diagnostic(
        "PS109",
        "the parameter has no default",
        trouble.span(before),
        label="nothing follows that could be its value",
        help="every parameter has one: `param NAME: TYPE = DEFAULT range LOW..HIGH`",
    )


def range_without_dots(trouble: SyntaxFailure) -> Diagnostic | None:
    found = trouble.unexpected_token
    if trouble.keyword != "param" or "DOTS" not in trouble.expected_terminals or found is None:
        return None
    return make_diagnostic(
        "PS101",
        f"`{found.text}` cannot stand between the ends of a range",
        trouble.span(found),
        label="`..` is expected",
        help="a range is written `range LOW..HIGH`, and holds both ends",
    )


def unmatched_closing_bracket(trouble: SyntaxFailure) -> Diagnostic | None:
    found = trouble.unexpected_token
    if found is None or found.text not in (")", "]", "}"):
        return None
    opened = trouble.open_brackets()
    if opened and CLOSING_BRACKETS[opened[-1].text] == found.text:
        return None
    if opened:
        return _unclosed_bracket_diagnostic(trouble, opened[-1], f"`{found.text}` comes first")
    return make_diagnostic(
        "PS108",
        f"`{found.text}` closes nothing",
        trouble.span(found),
        label="no bracket is open that it could close",
        help="take it out, or open the bracket before",
    )


def unclosed_bracket(trouble: SyntaxFailure) -> Diagnostic | None:
    """A bracket is open, could be closed here, and is not."""
    found, opened = trouble.unexpected_token, trouble.open_brackets()
    if not opened or opened[-1].text == "{":
        return None
    closer = "RPAR" if opened[-1].text == "(" else "RSQB"
    if closer not in trouble.expected_terminals and found is not None:
        return None
    if found is None:
        return _unclosed_bracket_diagnostic(trouble, opened[-1], "the statement ends first")
    if found.kind == "word" and (found.text in CLAUSES or found.text in STATEMENTS):
        return _unclosed_bracket_diagnostic(trouble, opened[-1], f"`{found.text}` comes first")
    return None


def _unclosed_bracket_diagnostic(trouble: SyntaxFailure, bracket: Token, why: str) -> Diagnostic:
    found = trouble.unexpected_token
    related = () if found is None else (Label(trouble.span(found), why),)
    return make_diagnostic(
        "PS102",
        f"the `{bracket.text}` is never closed",
        trouble.span(bracket),
        label="opened here",
        help=f"close it with `{CLOSING_BRACKETS[bracket.text]}`",
        related=related,
    )


def missing_block(trouble: SyntaxFailure) -> Diagnostic | None:
    if (
        trouble.keyword not in _STATEMENTS_WITH_BLOCK
        or "LBRACE" not in trouble.expected_terminals
        or trouble.open_brackets()
    ):
        return None
    if (
        trouble.keyword == "layer" and trouble.unexpected_token is not None
    ):  # more likely something is wrong with its condition
        return None
    before = trouble.previous_token()
    assert before is not None, "a statement begins with its keyword"
    return make_diagnostic(
        "PS131",
        f"a `{{` is missing in this {trouble.keyword}",
        trouble.span(before),
        label="`{` is expected behind this",
        help=f"write `{{` behind `{before.text}`, and `}}` at the end",
    )


def missing_type(trouble: SyntaxFailure) -> Diagnostic | None:
    name = trouble.previous_token()
    if "COLON" not in trouble.expected_terminals or name is None:
        return None
    example = {"let": "duration = 5m", "input": 'int = pod.labels["n"] ...', "metric": "ratio { ... }"}
    return make_diagnostic(
        "PS101",
        f"the type of `{name.text}` is missing",
        trouble.span(name),
        label="`:` and a type are expected behind this",
        help=f"write for instance `{trouble.keyword} {name.text}: {example.get(trouble.keyword, 'int')}`",
    )
