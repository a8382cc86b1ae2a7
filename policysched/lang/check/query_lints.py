"""Lints on the text of a Prometheus query: what no server accepts, and what it would measure wrongly.

The text is not parsed: only what is certain without a parser is reported. Queries of other sources have another form.
"""

import re

from policysched.lang.check.scope import Scope
from policysched.lang.parse.confusables import character_name
from policysched.lang.syntax import tree as s

_STRING = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`""")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_NEEDS_RANGE = re.compile(
    r"\b(i?rate|increase|i?delta|deriv|\w+_over_time)\s*\(\s*[a-zA-Z_:][\w:]*\s*(?:\{[^}]*\}\s*)?\)"
)
_BYTE_COUNTER = re.compile(r"_bytes(?:_total)?\b")
_SCALED = re.compile(r"(?<![\w.])(?:8(?:\.0)?)(?![\w.])")
_BITS = re.compile(r"(?:[kMGT]?bit/s|[kMGT]?bps)\Z")


def lint_query(scope: Scope, query: s.StringLit, unit: str | None) -> None:
    problem = _bracket_problem(query.value) or _character_problem(query.value) or _range_problem(query.value)
    if problem is not None:
        scope.report("PS418", problem[0], query.span, label="not a Prometheus query", help=problem[1])
        return
    is_in_bits = unit is not None and _BITS.match(unit) is not None
    if is_in_bits and _BYTE_COUNTER.search(query.value) and not _SCALED.search(query.value):
        scope.report(
            "PS418",
            f"the query returns bytes, but the unit is `{unit}`",
            query.span,
            label="`_bytes` in the name of the series",
            help='write `unit = "B/s"`, or multiply the query by 8',
        )


def _bracket_problem(query: str) -> tuple[str, str] | None:
    rest = _STRING.sub("", query)
    if quote := next((sign for sign in ("'", '"') if sign in rest), ""):
        return f"a `{quote}` in the query is not closed", f"add the closing `{quote}`"
    opened: list[str] = []
    for sign in rest:
        if sign in _CLOSING:
            opened.append(sign)
        elif sign in _CLOSING.values() and (not opened or _CLOSING[opened.pop()] != sign):
            return f"a `{sign}` in the query closes nothing", "count the brackets"
    return (
        (f"a `{opened[-1]}` in the query is not closed", f"add `{_CLOSING[opened[-1]]}`") if opened else None
    )


def _character_problem(query: str) -> tuple[str, str] | None:
    foreign = next((sign for sign in _STRING.sub("", query) if not sign.isascii()), "")
    if not foreign:
        return None
    return f"the query has the character `{foreign}`, {character_name(foreign)}", "write it in ASCII"


def _range_problem(query: str) -> tuple[str, str] | None:
    match = _NEEDS_RANGE.search(query)
    if match is None:
        return None
    written = match.group()
    return f"`{match.group(1)}` needs a range", f"write `{written[:-1].rstrip()}[2m])`"
