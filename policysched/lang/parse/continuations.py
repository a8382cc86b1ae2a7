"""Whether a line continues the statement before it, so that statements are cut where the grammar ends them.

A line that begins with a statement keyword begins a statement, unless only an expression can go on
like that: `traffic_to(` and on the next line `gang, talk)`.
"""

import re

from policysched.lang.parse.keywords import CLAUSES, CONTINUATION_KEYWORDS, OPERATOR_KEYWORDS

_GAP = r"(?:\s|[#][^\n]*(?:\n|\Z))"
_AFTER_KEYWORD = re.compile(rf'{_GAP}+(?:([A-Za-z_][A-Za-z0-9_]*)|["{{])|{_GAP}*\{{')
_STRING = r'"(?:\\.|[^"\\\n])*"'
_COMPLETE = re.compile(
    rf"""
      include {_GAP}+ (?: \w+ (?: {_GAP}* {_STRING} )? | {_STRING} )
    | (?: policy | library ) {_GAP}+ [\w.-]+ {_GAP}+ version {_GAP}+ \w+
    | drop {_GAP}+ (?: (?: filter | score ) {_GAP}+ \w+ | (?! (?: filter | score ) \Z ) \w+ )
    | reweight {_GAP}+ \w+ {_GAP}+ \w+
    | preemption {_GAP}+ never
    """,
    re.VERBOSE,
)
_COMPLETE_KEYWORDS = frozenset({"include", "policy", "library", "drop", "reweight", "preemption"})
_BEFORE_VALUE = frozenset((*CLAUSES, *OPERATOR_KEYWORDS, "by", "default", "where", "of", "recover", "for"))
_SIGNS_BEFORE_VALUE = frozenset("=+-*/<>,:([") | {"==", "!=", "<=", ">="}


def can_begin_statement(text: str, after: int) -> bool:
    """Whether what follows a statement keyword can follow it in a statement: a name, a string or `{`."""
    match = _AFTER_KEYWORD.match(text, after)
    return match is not None and (
        match.group(1) is None or match.group(1) == "by" or match.group(1) not in CONTINUATION_KEYWORDS
    )


def is_complete_statement(keyword: str, text: str) -> bool:
    """Whether nothing can be added to a statement with this text, as to `include kube_default`."""
    return keyword in _COMPLETE_KEYWORDS and _COMPLETE.fullmatch(text) is not None


def value_follows(previous: str) -> bool:
    """Whether the token before the line is followed by a value."""
    return previous in _BEFORE_VALUE or previous in _SIGNS_BEFORE_VALUE
