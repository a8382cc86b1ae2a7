"""Words that somebody else wrote, as one of our messages shows them: on one line, printable, and not without end."""

from typing import Any

from policysched.text.quote_value import quote_value

_LINE_CHARACTERS_MAX = 200


def sanitize_line(words: Any) -> str:
    """Of a text, or of whatever JSON stands where a text should. Never fails: what lists hold is not gone into, for they
    may be nested deeper than Python prints, and half of a surrogate pair, which UTF-8 does not have, is left out."""
    text = words if isinstance(words, str) else quote_value(words)
    if text.isprintable() and len(text) <= _LINE_CHARACTERS_MAX:
        return text
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * _LINE_CHARACTERS_MAX]).split())
    return line if len(line) <= _LINE_CHARACTERS_MAX else line[: _LINE_CHARACTERS_MAX - 1] + "…"
