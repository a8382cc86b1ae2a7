"""Numbers and signs that people write in the way of other languages, and that mean something else here or nothing."""

import re

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.parse.keywords import CLAUSES, COMPARISON_OPERATORS, UNIT_SPELLINGS
from policysched.lang.parse.syntax_failure import VALUE_KEYWORDS, SyntaxFailure
from policysched.lang.parse.tokens import Token
from policysched.text import Diagnostic, Span

_KEY = re.compile(r"[^\]\s\"]+")

# ── numbers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def malformed_number(trouble: SyntaxFailure) -> Diagnostic | None:
    found, number = trouble.unexpected_token, trouble.previous_token()
    if found is None:
        return None
    if found.text == "." and (digits := trouble.next_token()) is not None and digits.kind == "number":
        return _number_diagnostic(trouble, found, digits, f"0.{digits.text}", "a number begins with a digit")
    unit = number
    if (
        unit is not None
        and unit.kind == "word"
        and (before := trouble.previous_token(2)) is not None
        and before.kind == "number"
    ):
        # In braces `5 min` reads as the value 5 and a parameter `min`; the mistake shows one token later.
        if before.text[-1].isdigit() and unit.text in UNIT_SPELLINGS and trouble.on_same_line(before, unit):
            meant = before.text + UNIT_SPELLINGS[unit.text]
            return _number_diagnostic(
                trouble, before, unit, meant, "a unit follows its number without a space"
            )
        return None
    if number is None or number.kind != "number":
        return None
    bare = number.text[-1].isdigit()
    if found.text == "%" and bare:
        return _number_diagnostic(
            trouble, number, found, f"{number.text}%", "a unit follows its number without a space"
        )
    if found.kind == "word" and found.text in UNIT_SPELLINGS and bare:
        meant = number.text + UNIT_SPELLINGS[found.text]
        why = (
            "a unit follows its number without a space"
            if UNIT_SPELLINGS[found.text]
            else "cores and bytes are counted without a unit"
        )
        return _number_diagnostic(trouble, number, found, meant, why)
    if (
        found.text == ","
        and (rest := trouble.next_token()) is not None
        and rest.kind == "number"
        and rest.start == found.end
    ):
        return _number_diagnostic(
            trouble, number, rest, f"{number.text}.{rest.text}", "the decimal sign is a point"
        )
    if found.start == number.end and (found.kind in ("word", "number") or found.text == "."):
        plain = (number.text + found.text).replace("_", "")
        mended = plain if plain.isdigit() else None
        return _number_diagnostic(trouble, number, found, mended, "digits, at most one point, then a unit")
    return None


def _number_diagnostic(
    trouble: SyntaxFailure, first: Token, last: Token, mended: str | None, why: str
) -> Diagnostic:
    span = trouble.span(first, last)
    return make_diagnostic(
        "PS104",
        f"`{span.text}` is not a number",
        span,
        label=why,
        help=f"write `{mended}`" if mended else "write it out, such as `1000` or `1.5Gi`",
    )


# ── signs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def wrong_equals_sign(trouble: SyntaxFailure) -> Diagnostic | None:
    found = trouble.unexpected_token
    if found is None:
        return None
    before = trouble.previous_token()
    named = before is not None and before.kind == "word" and before.text not in VALUE_KEYWORDS
    if found.text == "==" and ("EQUAL" in trouble.expected_terminals or (trouble.expects_value and named)):
        return make_diagnostic(
            "PS110",
            "`==` compares; a value is given with `=`",
            trouble.span(found),
            label="one `=` too many",
            help="write `=`",
        )
    if found.text == "=" and "EQ" in trouble.expected_terminals:
        return make_diagnostic(
            "PS110",
            "`=` gives a value; to compare, write `==`",
            trouble.span(found),
            label="one `=` too few",
            help="write `==`",
        )
    return None


def unquoted_key(trouble: SyntaxFailure) -> Diagnostic | None:
    found, bracket = trouble.unexpected_token, trouble.previous_token()
    if found is None or bracket is None or trouble.expects_value:
        return None
    if trouble.expected_terminals == {"RSQB"} and bracket.kind == "word" and bracket.end == found.start:
        found, bracket = (
            bracket,
            trouble.previous_token(2),
        )  # `[app.kubernetes.io/name]` reads as a name at first
        if bracket is None or bracket.text != "[":
            return None
    elif bracket.text != "[" or "STRING" not in trouble.expected_terminals:
        return None
    source = trouble.context.source
    key = _KEY.match(source.text, found.start, trouble.context.end)
    text = key.group() if key is not None else found.text
    return make_diagnostic(
        "PS112",
        f"the key `{text}` is not in quotes",
        Span(source, found.start, found.start + len(text)),
        label="not quoted",
        help=f'write `["{text}"]`',
    )


def trailing_comma(trouble: SyntaxFailure) -> Diagnostic | None:
    found, comma = trouble.unexpected_token, trouble.previous_token()
    if comma is None or comma.text != ",":
        return None
    if found is None or found.text in ")]}" or found.text in CLAUSES:
        return make_diagnostic(
            "PS115",
            "a comma with nothing behind it",
            trouble.span(comma),
            label="separates nothing",
            help="take the comma out",
        )
    return None


def comma_between_clauses(trouble: SyntaxFailure) -> Diagnostic | None:
    found = trouble.unexpected_token
    if found is None or found.text != "," or "COMMA" in trouble.expected_terminals or trouble.open_brackets():
        return None
    return make_diagnostic(
        "PS101",
        "a comma cannot stand here",
        trouble.span(found),
        label="not expected",
        help="the parts of a statement follow each other without commas; take it out",
    )


def chained_comparison(trouble: SyntaxFailure) -> Diagnostic | None:
    found = trouble.unexpected_token
    if (
        found is None
        or found.text not in (*COMPARISON_OPERATORS, "in")
        or "AND" not in trouble.expected_terminals
    ):
        return None
    return make_diagnostic(
        "PS128",
        "comparisons cannot follow each other",
        trouble.span(found),
        label="the second comparison",
        help="write `a < b and b < c` instead of `a < b < c`",
    )


def direction_before_key(trouble: SyntaxFailure) -> Diagnostic | None:
    found, order = trouble.unexpected_token, trouble.previous_token()
    if (
        trouble.keyword != "queue"
        or order is None
        or order.text not in ("asc", "desc")
        or trouble.token_index < 2
    ):
        return None
    if found is None or found.kind not in ("word", "open"):
        return None
    return make_diagnostic(
        "PS116",
        f"`{order.text}` stands before what it orders",
        trouble.span(order),
        label="belongs behind",
        help=f"write `{trouble.text_to_comma()} {order.text}`",
    )
