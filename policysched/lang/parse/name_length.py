"""The limit on the length of names, which are in messages to pods, labels of metrics and lines of the log."""

import re
from collections.abc import Iterator

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.parse.tokens import raw_tokens
from policysched.text import Diagnostic, Source, Span

NAME_CHARACTERS_MAX = 63
"""As for a DNS label, which the name of a policy is, and for the value of a label."""
_LONG_WORD = re.compile(rf"[A-Za-z0-9_]{{{NAME_CHARACTERS_MAX + 1}}}")


def long_names(source: Source) -> Iterator[Diagnostic]:
    """A diagnostic for each word that is too long. Words in strings and comments are no names."""
    if _LONG_WORD.search(source.text) is None:
        return
    for kind, text, start in raw_tokens(source.text, 0, len(source.text)):
        if kind == "word" and len(text) > NAME_CHARACTERS_MAX:
            yield name_too_long("name", text, Span(source, start, start + len(text)), NAME_CHARACTERS_MAX)


def name_too_long(what: str, text: str, span: Span, characters_max: int) -> Diagnostic:
    return make_diagnostic(
        "PS134",
        f"the {what} `{text[:characters_max]}...` has {len(text):,} characters, the limit is {characters_max}",
        span,
        label="too long",
        help="choose a shorter name: it is in messages to pods and in metrics",
    )
