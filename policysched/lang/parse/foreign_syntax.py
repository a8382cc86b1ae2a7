"""Explain the syntax of other languages: dashes in names, `x := 5`, `elif`, `in (...)`, PromQL."""

import re

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.parse.foreign_words import CLAUSE_WORDS, FUNCTION_WORDS, OPERATOR_WORDS, QUERY_HELP
from policysched.lang.parse.keywords import CLAUSES, STATEMENTS
from policysched.lang.parse.syntax_failure import SyntaxFailure
from policysched.lang.parse.tokens import Token
from policysched.text import Diagnostic, Span

_DASHED = re.compile(r"[A-Za-z0-9_]+(?:-[A-Za-z0-9_]+)+")
_RULES = frozenset({"filter", "score", "amend", "replace", "locked", "extender"})
_AGGREGATIONS = frozenset({"by", "without", "offset", "ignoring", "group_left"})
_TYPE_OF_SUFFIX = {
    **dict.fromkeys(("s", "h", "d", "ms", "m", "min"), "duration"),
    **dict.fromkeys(("Ki", "Mi", "Gi", "Ti", "k", "M", "G", "T"), "bytes"),
    "%": "ratio",
}


def likely_type(value: Token | None) -> str:
    """The type that a `let` with this value probably has."""
    if value is None or value.kind == "word":
        return "bool" if value is not None and value.text in ("true", "false") else "TYPE"
    if value.kind == "string":
        return "string"
    if value.kind != "number":
        return "list<string>" if value.text == "[" else "TYPE"
    suffix = value.text.lstrip("0123456789.")
    if suffix.endswith(("bps", "Bps")):
        return "bandwidth"
    return _TYPE_OF_SUFFIX.get(suffix) or ("float" if "." in value.text else "int")


def dashed_name(failure: SyntaxFailure) -> Diagnostic | None:
    unexpected, before = failure.unexpected_token, failure.previous_token()
    if unexpected is None or unexpected.text != "-" or before is None or before.end != unexpected.start:
        return None
    if any(token.text not in STATEMENTS for token in failure.tokens[: failure.token_index - 1]):
        return None
    name = _DASHED.match(failure.context.source.text, before.start)
    if name is None:
        return None
    return make_diagnostic(
        "PS101",
        f"the name `{name.group()}` has a dash",
        Span(failure.context.source, name.start(), name.end()),
        label="names have letters, digits and `_`",
        help=f"write `{name.group().replace('-', '_')}`",
    )


def declared_without_type(failure: SyntaxFailure) -> Diagnostic | None:
    """`let x := 5`."""
    unexpected, colon, name = failure.unexpected_token, failure.previous_token(), failure.previous_token(2)
    if unexpected is None or unexpected.text != "=" or colon is None or colon.text != ":" or name is None:
        return None
    return make_diagnostic(
        "PS101",
        f"the type of `{name.text}` is missing",
        failure.span(colon, unexpected),
        label="expected a type between `:` and `=`",
        help=f"for example `{failure.keyword} {name.text}: {likely_type(failure.next_token())} = ...`",
    )


def equals_after_clause(failure: SyntaxFailure) -> Diagnostic | None:
    """`weight = 5`, `missing: reject`."""
    unexpected, before, value = failure.unexpected_token, failure.previous_token(), failure.next_token()
    if unexpected is None or unexpected.text not in ("=", ":", "==") or before is None or value is None:
        return None
    if failure.keyword not in _RULES or before.text not in CLAUSES or failure.open_brackets():
        return None
    return make_diagnostic(
        "PS101",
        f"unexpected `{unexpected.text}` after `{before.text}`",
        failure.span(unexpected),
        label="clauses have no sign before their value",
        help=f"write `{before.text} {value.text}`",
    )


def negative_weight(failure: SyntaxFailure) -> Diagnostic | None:
    unexpected, before = failure.unexpected_token, failure.previous_token()
    if unexpected is None or unexpected.text != "-" or before is None or before.text != "weight":
        return None
    return make_diagnostic(
        "PS114",
        "a weight is not negative",
        failure.span(unexpected),
        label="not a whole number",
        help="reverse the score: `lower` for `higher`, or `prefer not (CONDITION)`",
    )


def rule_in_braces(failure: SyntaxFailure) -> Diagnostic | None:
    """`filter a { require node.ready }`."""
    opened = failure.open_brackets()
    if failure.keyword not in _RULES or len(opened) != 1 or opened[0].text != "{":
        return None
    at = failure.tokens.index(opened[0])
    clause = failure.tokens[at + 1] if at + 1 < len(failure.tokens) else None
    if (
        clause is None
        or clause.text not in CLAUSES
        or "=" in {t.text for t in failure.tokens[at + 2 : at + 3]}
    ):
        return None
    return make_diagnostic(
        "PS101",
        "the clauses of a rule are not in braces",
        failure.span(opened[0]),
        label="braces are for the parameters of built-ins",
        help=f"remove the braces: `{failure.keyword} {failure.tokens[at - 1].text} {clause.text} ...`",
    )


def foreign_branch(failure: SyntaxFailure) -> Diagnostic | None:
    """`elif`, `elseif`."""
    unexpected = failure.unexpected_token
    if unexpected is None or unexpected.text.lower() not in ("elif", "elseif", "elsif", "elsf"):
        return None
    return make_diagnostic(
        "PS132",
        f"unexpected `{unexpected.text}`",
        failure.span(unexpected),
        label="not a keyword",
        help="write `else if CONDITION then VALUE else VALUE`",
    )


def quote_in_string(failure: SyntaxFailure) -> Diagnostic | None:
    """`"on {node.labels["rack"]}"`: the string ends at its second quotation mark."""
    unexpected, before = failure.unexpected_token, failure.previous_token()
    if unexpected is None or before is None or before.kind != "string" or before.end != unexpected.start:
        return None
    if unexpected.kind not in ("word", "number"):
        return None
    return make_diagnostic(
        "PS101",
        f"the string ends before `{unexpected.text}`",
        Span(failure.context.source, before.end - 1, before.end),
        label="this quotation mark ends it",
        help=f'write `\\"` for a quotation mark in a string: `\\"{unexpected.text}\\"`',
    )


def prometheus_query(failure: SyntaxFailure) -> Diagnostic | None:
    """`sum by (instance) (...)`, `name{label="x"}`, `name[2m]`, where an expression is expected."""
    unexpected, before, after = failure.unexpected_token, failure.previous_token(), failure.next_token()
    if unexpected is None or before is None or failure.keyword not in (*_RULES, "let"):
        return None
    is_selector = (
        unexpected.text == "{" and before.kind == "word" and before.end == unexpected.start and after is not None
        and after.kind == "word" and (sign := failure.next_token(2)) is not None and sign.text in ("=", "!=")
    )  # fmt: skip
    is_index = before.text == "[" and unexpected.kind == "number" and not failure.expects_value
    is_range = is_index and unexpected.text[-1] in "smhd"
    if is_index and not is_range:
        return _no_index(failure, unexpected)
    is_grouped = unexpected.text in _AGGREGATIONS and after is not None and after.text == "("
    if not (is_selector or is_range or is_grouped):
        return None
    return make_diagnostic(
        "PS101",
        "a Prometheus query is not an expression",
        failure.span(unexpected),
        label="PromQL",
        help=QUERY_HELP,
    )


def _no_index(failure: SyntaxFailure, unexpected: Token) -> Diagnostic:
    return make_diagnostic(
        "PS101",
        "lists have no index",
        failure.span(unexpected),
        label="expected a quoted key",
        help='test whether a list has an element: `"NAME" in pod.images`',
    )


def method_call(failure: SyntaxFailure) -> Diagnostic | None:
    """`node.name.startswith("gpu")`."""
    unexpected, method, dot = failure.unexpected_token, failure.previous_token(), failure.previous_token(2)
    if unexpected is None or unexpected.text != "(" or method is None or dot is None or dot.text != ".":
        return None
    return make_diagnostic(
        "PS101",
        f"values have no methods, such as `{method.text}`",
        failure.span(method),
        label="not an attribute",
        help=FUNCTION_WORDS.get(method.text) or "functions stand before their values: `max(a, b)`",
    )


def list_in_parentheses(failure: SyntaxFailure) -> Diagnostic | None:
    """`x in ("a", "b")`."""
    unexpected, opened = failure.unexpected_token, failure.open_brackets()
    if unexpected is None or unexpected.text != "," or not opened or opened[-1].text != "(":
        return None
    at = failure.tokens.index(opened[-1])
    if at == 0 or failure.tokens[at - 1].text != "in":
        return None
    return make_diagnostic(
        "PS101",
        "a list is in square brackets",
        failure.span(opened[-1]),
        label="this begins an expression",
        help='write `x in ["a", "b"]`',
    )


def foreign_word(failure: SyntaxFailure) -> Diagnostic | None:
    """A word of another language where an operator or a clause can stand."""
    unexpected, before = failure.unexpected_token, failure.previous_token()
    if unexpected is None or before is None:
        return None
    if unexpected.kind != "word":
        return _foreign_sign(failure, before, unexpected)
    word = unexpected.text.lower()
    advice = "" if failure.expects_value or before.text in STATEMENTS else OPERATOR_WORDS.get(word, "")
    if failure.keyword in ("param", "locked") and word in ("min", "max", "between", "from"):
        advice = "write `range LOW..HIGH`; both bounds are included"
    if failure.keyword == "include" and word in ("without", "except", "but", "exclude"):
        advice = "write `drop NAME` on a line of its own"
    if not advice and failure.keyword in (*_RULES, "layer") and not failure.open_brackets():
        is_clause = failure.expected_terminals & {"WHEN", "REQUIRE", "WEIGHT"}
        advice = CLAUSE_WORDS.get(word, "") if is_clause else ""
    if not advice:
        return None
    return make_diagnostic(
        "PS106", f"unexpected `{unexpected.text}`", failure.span(unexpected), label="unknown keyword", help=advice
    )  # fmt: skip


_SIGN_ADVICE = {
    "**": "there are no powers; multiply: `x * x`",
    "%": "there is no remainder; write `floor(a / b else 0)` for whole parts",
}
_SIGNS = {"<>": "!=", "===": "==", "!==": "!=", "=>": ">=", "=<": "<="}


def _foreign_sign(failure: SyntaxFailure, before: Token, unexpected: Token) -> Diagnostic | None:
    """Two signs that are one elsewhere. The parser stops at the first or at the second."""
    after = failure.next_token()
    first, second = before, unexpected
    if unexpected.text == "=" and after is not None and after.text == ">" and after.start == unexpected.end:
        first, second = unexpected, after
    if unexpected.text == "%":
        if before.kind == "number":
            return None  # `10 %`
        first = second
    elif first.end != second.start:
        return None
    written = failure.span(first, second)
    meant = _SIGNS.get(written.text)
    advice = f"write `{meant}`" if meant is not None else _SIGN_ADVICE.get(written.text)
    if advice is None:
        return None
    return make_diagnostic(
        "PS111",
        f"`{written.text}` is not an operator",
        written,
        label="unknown operator" if meant is None else f"use `{meant}`",
        help=advice,
    )
