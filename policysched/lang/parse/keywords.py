"""The keywords of the language, by role.

The grammar knows where each is allowed. These tables serve the code around it: the scanner, the
suggestions for misspelled keywords, and the check for reserved names.
"""

LAYER_STATEMENTS = ("filter", "score", "amend", "replace", "reweight", "drop", "locked")
"""Statements that are allowed inside and outside layers."""

TOP_STATEMENTS = (
    "policy", "library", "include", "param", "let", "record", "input", "metric", "state", "queue", "gang", "preemption", "quota", "outage", "resource", "extender", "layer", "canary", "shadow",
)  # fmt: skip

STATEMENTS = TOP_STATEMENTS + LAYER_STATEMENTS

RESERVED_STATEMENTS = ("test",)
"""Reserved for later versions: not statements yet, and not allowed as names."""

OPERATOR_KEYWORDS = ("and", "or", "in", "not", "has", "else", "if", "then")

FILTER_CLAUSES = ("when", "require", "reject", "missing", "scaleup", "says")
"""In the order in which they are written. `require` and `reject` share a position."""

SCORE_CLAUSES = ("weight", "when", "lower", "higher", "prefer", "normalize", "missing")

EXTENDER_CLAUSES = ("weight", "missing")

CLAUSES = tuple(dict.fromkeys(FILTER_CLAUSES + SCORE_CLAUSES))

CONTINUATION_KEYWORDS = frozenset(
    (*CLAUSES, *(word for word in OPERATOR_KEYWORDS if word != "if"), "by", "asc", "desc", "range", "over", "at", "unit", "default", "optional", "required", "preferred", "invalid", "version", "on", "where", "of", "after", "placing", "recover", "for", "within", "borrow", "others", "unlimited", "guard", "rollback")
)  # fmt: skip
"""Keywords that continue a statement: a line that begins with one does not begin another statement."""

OWNER_KEYWORDS = ("pod", "node", "namespace", "victim", "other")

RESERVED_NAMES = frozenset(
    (*STATEMENTS, *RESERVED_STATEMENTS, *OPERATOR_KEYWORDS, *CLAUSES, *OWNER_KEYWORDS, "true", "false", "now", "asc", "desc", "where")
)  # fmt: skip
"""Names that no declaration may have, because expressions would become ambiguous."""

UNIT_SPELLINGS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("h", "hr", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "d"),
    "ms": "ms",
    "percent": "%",
    "core": "",
    "cores": "",
    **{f"{scale}iB": f"{scale}i" for scale in ("K", "M", "G", "T", "P")},
    **{f"{scale}B": scale for scale in ("k", "M", "G", "T", "P")},
    "K": "k",
    "KB": "k",
    "B": "",
    **{unit: unit for unit in ("Ki", "Mi", "Gi", "Ti", "Pi", "k", "M", "G", "T", "P")},
    **{
        f"{scale}{unit}": f"{scale}{unit}"
        for scale in ("", "k", "K", "M", "G", "T")
        for unit in ("bps", "Bps")
    },
}
"""Common spellings of units, and the unit suffix that is meant."""

KEYWORD_OF_TERMINAL = {
    word.upper(): word
    for word in (
        *STATEMENTS,
        *CONTINUATION_KEYWORDS,
        "never",
        "true",
        "false",
        "pods",
        "node",
        "nodes",
        "all",
        "placed",
    )
}
"""The keyword that a terminal of the grammar stands for."""

SIGN_OF_TERMINAL = {
    "EQ": "==", "NE": "!=", "LE": "<=", "GE": ">=", "LESS": "<", "GREATER": ">", "EQUAL": "=", "PLUS": "+", "MINUS": "-",
    "TIMES": "*", "DIVIDED": "/", "LPAR": "(", "RPAR": ")", "LSQB": "[", "RSQB": "]", "LBRACE": "{", "RBRACE": "}",
    "COMMA": ",", "COLON": ":", "DOT": ".",
}  # fmt: skip

VALUE_START_TERMINALS = frozenset({"NUMBER", "LPAR", "MINUS"})
"""Where the grammar accepts all of these, a value is expected."""

COMPARISON_OPERATORS = frozenset({"==", "!=", "<", "<=", ">", ">="})
