"""Untrusted text in messages: on one line, printable and cut."""

from typing import Any

from policysched.text.quote_value import quote_value

_LINE_CHARACTERS_MAX = 200


def sanitize_line(value: Any) -> str:
    """A printable line for a string or any other JSON value. Never fails: collections are not descended into (they may be
    nested deeper than Python can print), and unpaired surrogates, which UTF-8 cannot encode, are dropped."""
    text = value if isinstance(value, str) else quote_value(value)
    if text.isprintable() and len(text) <= _LINE_CHARACTERS_MAX:
        return text
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * _LINE_CHARACTERS_MAX]).split())
    return line if len(line) <= _LINE_CHARACTERS_MAX else line[: _LINE_CHARACTERS_MAX - 1] + "…"
