"""Explain malformed numbers and misplaced punctuation, mostly habits from other languages."""

import re

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.parse.keywords import CLAUSES, COMPARISON_OPERATORS, UNIT_SPELLINGS
from policysched.lang.parse.syntax_failure import VALUE_KEYWORDS, SyntaxFailure
from policysched.lang.parse.tokens import Token
from policysched.text import Diagnostic, Span

_KEY = re.compile(r"[^\]\s\"]+")
_RESOURCE = re.compile(r"[\w./-]+")

# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def malformed_number(failure: SyntaxFailure) -> Diagnostic | None:
    unexpected, number = failure.unexpected_token, failure.previous_token()
    if unexpected is None:
        return None
    if unexpected.text == "." and (digits := failure.next_token()) is not None and digits.kind == "number":
        return _number_diagnostic(
            failure, unexpected, digits, f"0.{digits.text}", "a number begins with a digit"
        )
    unit = number
    if (
        unit is not None
        and unit.kind == "word"
        and (before := failure.previous_token(2)) is not None
        and before.kind == "number"
    ):
        # In braces, `5 min` parses as the value 5 and a parameter `min`; the parser stops one token later.
        if before.text[-1].isdigit() and unit.text in UNIT_SPELLINGS and failure.on_same_line(before, unit):
            replacement = before.text + UNIT_SPELLINGS[unit.text]
            return _number_diagnostic(failure, before, unit, replacement, "no space is allowed before a unit")
        return None
    if number is None or number.kind != "number":
        return None
    bare = number.text[-1].isdigit()
    if unexpected.text == "%" and bare:
        return _number_diagnostic(
            failure, number, unexpected, f"{number.text}%", "no space is allowed before a unit"
        )
    slash, per = failure.next_token(), failure.next_token(2)
    is_rate = slash is not None and slash.text == "/" and per is not None and per.text in ("s", "sec")
    rate = _rate_suffix(unexpected.text) if is_rate and bare else ""
    if rate:
        reason = "no space or sign is allowed in a unit"
        return _number_diagnostic(failure, number, per or unexpected, number.text + rate, reason)
    if unexpected.kind == "word" and unexpected.text in UNIT_SPELLINGS and bare:
        replacement = number.text + UNIT_SPELLINGS[unexpected.text]
        reason = (
            "no space is allowed before a unit"
            if UNIT_SPELLINGS[unexpected.text]
            else "cores and bytes have no unit suffix"
        )
        return _number_diagnostic(failure, number, unexpected, replacement, reason)
    if (
        unexpected.text == ","
        and (rest := failure.next_token()) is not None
        and rest.kind == "number"
        and rest.start == unexpected.end
    ):
        return _number_diagnostic(
            failure, number, rest, f"{number.text}.{rest.text}", "the decimal separator is a point"
        )
    if unexpected.start == number.end and (unexpected.kind in ("word", "number") or unexpected.text == "."):
        plain = (number.text + unexpected.text).replace("_", "")
        digits_only = plain if plain.isdigit() else None
        return _number_diagnostic(
            failure, number, unexpected, digits_only, "expected digits, at most one decimal point and a unit"
        )
    return None


def _rate_suffix(unit: str) -> str:
    """The suffix for `MB` of `MB/s`; empty if it is no amount of data."""
    scale, bits = unit.rstrip("bBits"), unit.endswith(("b", "bit", "bits"))
    return f"{scale}{'bps' if bits else 'Bps'}" if scale in ("", "k", "K", "M", "G", "T") else ""


def _number_diagnostic(
    failure: SyntaxFailure, first: Token, last: Token, replacement: str | None, reason: str
) -> Diagnostic:
    span = failure.span(first, last)
    return make_diagnostic(
        "PS104",
        f"malformed number `{span.text}`",
        span,
        label=reason,
        help=f"write `{replacement}`" if replacement else "for example `1000` or `1.5Gi`",
    )


# ── punctuation ──────────────────────────────────────────────────────────────────────────────────────────────────────


def wrong_equals_sign(failure: SyntaxFailure) -> Diagnostic | None:
    unexpected = failure.unexpected_token
    if unexpected is None:
        return None
    before = failure.previous_token()
    named = before is not None and before.kind == "word" and before.text not in VALUE_KEYWORDS
    if unexpected.text == "==" and (
        "EQUAL" in failure.expected_terminals or (failure.expects_value and named)
    ):
        return make_diagnostic(
            "PS110",
            "expected `=`, found `==`",
            failure.span(unexpected),
            label="`==` is a comparison",
            help="write `=` to assign a value",
        )
    if unexpected.text == ":" and "EQUAL" in failure.expected_terminals and named:
        return make_diagnostic(
            "PS110",
            "expected `=`, found `:`",
            failure.span(unexpected),
            label="`:` is for types",
            help="write `=` to set a value",
        )
    if unexpected.text == "=" and failure.keyword == "preemption" and failure.token_index == 1:
        return make_diagnostic(
            "PS110",
            "unexpected `=`",
            failure.span(unexpected),
            help="write `preemption never`, or `preemption { victims = own }`",
        )
    if unexpected.text == "=" and "EQ" in failure.expected_terminals:
        return make_diagnostic(
            "PS110",
            "expected `==`, found `=`",
            failure.span(unexpected),
            label="`=` is an assignment",
            help="write `==` to compare two values",
        )
    return None


def unquoted_key(failure: SyntaxFailure) -> Diagnostic | None:
    unexpected, bracket = failure.unexpected_token, failure.previous_token()
    if unexpected is None or bracket is None or failure.expects_value:
        return None
    if failure.expected_terminals == {"RSQB"} and bracket.kind == "word" and bracket.end == unexpected.start:
        unexpected, bracket = (
            bracket,
            failure.previous_token(2),
        )  # `[app.kubernetes.io/name]` begins like a name
        if bracket is None or bracket.text != "[":
            return None
    elif bracket.text != "[" or "STRING" not in failure.expected_terminals:
        return None
    source = failure.context.source
    key = _KEY.match(source.text, unexpected.start, failure.context.end)
    text = key.group() if key is not None else unexpected.text
    return make_diagnostic(
        "PS112",
        f"the key `{text}` is not quoted",
        Span(source, unexpected.start, unexpected.start + len(text)),
        label="expected a quoted key",
        help=f'write `["{text}"]`',
    )


def unquoted_resource(failure: SyntaxFailure) -> Diagnostic | None:
    """`nvidia.com/gpu = 8` in a row of a quota begins like a name."""
    before = failure.previous_token()
    if failure.keyword != "quota" or before is None or failure.expected_terminals != {"EQUAL"}:
        return None
    source = failure.context.source
    key = _RESOURCE.match(source.text, before.start, failure.context.end)
    if key is None or key.end() <= before.end:
        return None
    return make_diagnostic(
        "PS112",
        f"the resource `{key.group()}` is not quoted",
        Span(source, key.start(), key.end()),
        label="expected a quoted name",
        help=f'write `"{key.group()}" = AMOUNT`',
    )


def pods_that_are_placed_anyway(failure: SyntaxFailure) -> Diagnostic | None:
    """`count(placed pods in "zone")`."""
    unexpected, pods, which = failure.unexpected_token, failure.previous_token(), failure.previous_token(2)
    if unexpected is None or pods is None or which is None:
        return None
    if unexpected.text not in ("in", "on") or pods.text != "pods" or which.text not in ("placed", "all"):
        return None
    return make_diagnostic(
        "PS101",
        f"unexpected `{which.text}`",
        failure.span(which),
        label=f"`pods {unexpected.text}` are placed pods",
        help="write `pods on node`" if unexpected.text == "on" else 'write `pods in "KEY"`',
    )


def trailing_comma(failure: SyntaxFailure) -> Diagnostic | None:
    unexpected, comma = failure.unexpected_token, failure.previous_token()
    if comma is None or comma.text != ",":
        return None
    if unexpected is None or unexpected.text in ")]}" or unexpected.text in CLAUSES:
        return make_diagnostic(
            "PS115",
            "trailing comma",
            failure.span(comma),
            label="no item follows",
            help="remove the comma",
        )
    return None


def comma_between_clauses(failure: SyntaxFailure) -> Diagnostic | None:
    unexpected = failure.unexpected_token
    if (
        unexpected is None
        or unexpected.text != ","
        or "COMMA" in failure.expected_terminals
        or failure.open_brackets()
    ):
        return None
    return make_diagnostic(
        "PS101",
        "unexpected comma",
        failure.span(unexpected),
        label="unexpected",
        help="remove it; the clauses of a statement are not separated by commas",
    )


def chained_comparison(failure: SyntaxFailure) -> Diagnostic | None:
    unexpected = failure.unexpected_token
    if (
        unexpected is None
        or unexpected.text not in (*COMPARISON_OPERATORS, "in")
        or "AND" not in failure.expected_terminals
    ):
        return None
    return make_diagnostic(
        "PS128",
        "comparisons cannot be chained",
        failure.span(unexpected),
        label="second comparison",
        help="write `a < b and b < c` instead of `a < b < c`",
    )


def direction_before_key(failure: SyntaxFailure) -> Diagnostic | None:
    unexpected, order = failure.unexpected_token, failure.previous_token()
    if (
        failure.keyword != "queue"
        or order is None
        or order.text not in ("asc", "desc")
        or failure.token_index < 2
    ):
        return None
    if unexpected is None or unexpected.kind not in ("word", "open"):
        return None
    return make_diagnostic(
        "PS116",
        f"`{order.text}` precedes its key",
        failure.span(order),
        label="belongs after the key",
        help=f"write `{failure.text_to_comma()} {order.text}`",
    )
