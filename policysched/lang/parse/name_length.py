"""The limits on the length of names, which are in messages to pods, labels of metrics and lines of the log, and of strings."""

import re
from collections.abc import Iterator

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.parse.tokens import raw_tokens
from policysched.text import Diagnostic, Source, Span

NAME_CHARACTERS_MAX = 63
"""As for a DNS label, which the name of a policy is, and for the value of a label."""
STRING_CHARACTERS_MAX = 4_096
"""Of a query, a key, or a value that is compared; an escape sequence is one."""
_ESCAPE = re.compile(r"\\.")
_LONG_WORD = re.compile(rf"[A-Za-z0-9_]{{{NAME_CHARACTERS_MAX + 1}}}")


def long_tokens(source: Source) -> Iterator[Diagnostic]:
    """A diagnostic for each name and string that is too long. Words in strings and comments are no names."""
    is_line_long = any(len(line) > STRING_CHARACTERS_MAX for line in source.text.split("\n"))
    if not is_line_long and _LONG_WORD.search(source.text) is None:
        return
    for kind, text, start in raw_tokens(source.text, 0, len(source.text)):
        if kind == "word" and len(text) > NAME_CHARACTERS_MAX:
            yield name_too_long("name", text, Span(source, start, start + len(text)), NAME_CHARACTERS_MAX)
        elif kind == "string" and (count := len(_ESCAPE.sub("_", text)) - 2) > STRING_CHARACTERS_MAX:
            yield make_diagnostic(
                "PS135",
                f"the string has {count:,} characters, the limit is {STRING_CHARACTERS_MAX:,}",
                Span(source, start, start + len(text)),
                label="too long",
                help="shorten it; a long query can be a recording rule of the Prometheus server",
            )


def name_too_long(what: str, text: str, span: Span, characters_max: int) -> Diagnostic:
    return make_diagnostic(
        "PS134",
        f"the {what} `{text[:characters_max]}...` has {len(text):,} characters, the limit is {characters_max}",
        span,
        label="too long",
        help="choose a shorter name: it is in messages to pods and in metrics",
    )
