"""Untrusted text in messages: printable, and on one line of limited length."""

import json
from typing import Any

from policysched.text.quote_value import quote_value

_LINE_CHARACTERS_MAX = 200


def escape_unprintable(text: str) -> str:
    """Control, bidirectional and invisible characters as escapes, such as `\\x1b` and `\\u202e`; line breaks stay.

    They could change what a terminal shows, or its order.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _escape(char) for char in text)


def escape_to_line(text: str) -> str:
    """Like `escape_unprintable`, with escaped line breaks: a text of others cannot begin a line of its own, such as a
    forged line of the log or a command of GitHub workflows."""
    return escape_unprintable(text).replace("\n", "\\n")


def escape_json(text: str) -> str:
    """The same JSON, with escapes for what a terminal could obey, also beyond ASCII."""
    return "\n".join(
        line
        if line.isprintable()
        else "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in line)
        for line in text.split("\n")
    )


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def sanitize_line(value: Any) -> str:
    """A printable line for a string or any other JSON value. Never fails: collections are not descended into (they may be
    nested deeper than Python can print). Whitespace is one space, other unprintable characters are escaped, as are
    unpaired surrogates, which UTF-8 cannot encode."""
    text = value if isinstance(value, str) else quote_value(value)
    if text.isprintable() and len(text) <= _LINE_CHARACTERS_MAX:
        return text
    line = escape_unprintable(" ".join(text[: 4 * _LINE_CHARACTERS_MAX].split()))
    return line if len(line) <= _LINE_CHARACTERS_MAX else line[: _LINE_CHARACTERS_MAX - 1] + "…"
