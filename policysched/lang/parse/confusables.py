"""Characters that look like those of the language: letters of other alphabets, full-width signs, typographic dashes.

They come from web pages, chats and input methods. A character with one counterpart is reported once a line and read as
that counterpart, so that nothing else is reported about it. In strings and comments only invisible ones are reported.
"""

import re
import unicodedata

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.parse.tokens import raw_tokens
from policysched.text import Diagnostic, Source, Span

_LETTERS = {
    **dict(zip("аеорсухіјѕһԁԛԝ", "aeopcyxijshdqw", strict=True)),  # Cyrillic
    **dict(zip("АВЕКМНОРСТУХІЈЅ", "ABEKMHOPCTYXIJS", strict=True)),
    **dict(zip("οανρικ", "oavpik", strict=True)),  # Greek
    **dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "ABEZHIKMNOPTYX", strict=True)),
}
_SIGNS = {
    **dict.fromkeys("‐‑‒–—−", "-"),
    **dict.fromkeys("×∗", "*"),
    **dict.fromkeys("÷⁄∕", "/"),
    "∶": ":",
    "‹": "<",
    "›": ">",
}
INVISIBLE = "\u00a0\u200b\u200c\u200d\u2060\ufeff\u202f\u3000"
"""Blanks that are not spaces; read as one outside strings."""
_HIDDEN = re.compile("[\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
"""Without a width, or changing the order of what is shown. Joiners are left out: some scripts need them."""
_OPERATORS = {"≤": "<=", "≥": ">=", "≠": "!=", "≡": "==", "∧": "and", "∨": "or", "¬": "not", "∈": "in", "∉": "not in", "∞": ""}  # fmt: skip
"""Of more than one character, so that they cannot be read in place."""


def counterpart(character: str) -> str:
    """The ASCII character that it looks like; empty if there is none."""
    near = _LETTERS.get(character) or _SIGNS.get(character) or unicodedata.normalize("NFKC", character)
    return near if len(near) == 1 and near.isascii() and near.isprintable() and not near.isspace() else ""


def operator_of(character: str) -> str:
    """The operator that a mathematical sign stands for; empty if there is none."""
    return _OPERATORS.get(character, "")


def lookalike(text: str) -> tuple[str, str] | None:
    """The first character of a text that looks like an ASCII one, and that one."""
    return next(((character, near) for character in text if (near := _lookalike(character))), None)


def _lookalike(character: str) -> str:
    return "" if character.isascii() else counterpart(character)


def has_hidden_character(text: str) -> bool:
    return not text.isascii() and _HIDDEN.search(text) is not None


def character_name(character: str) -> str:
    """`U+043E CYRILLIC SMALL LETTER O`."""
    return f"U+{ord(character):04X} {unicodedata.name(character, '')}".rstrip()


def read_confusables(source: Source) -> tuple[str, list[Diagnostic]]:
    """The text with lookalikes outside strings and comments replaced, of equal length, and what is reported about them."""
    text = source.text
    if text.isascii():
        return text, []
    characters, diagnostics, line_reported = list(text), list[Diagnostic](), 0
    for kind, token, start in raw_tokens(text, 0, len(text)):
        if kind in ("string", "open_string", "comment"):
            hidden = _HIDDEN.search(token)
            if hidden is not None:
                diagnostics.append(_hidden_character(source, start + hidden.start()))
            continue
        near = counterpart(token) if kind == "stray" and not token.isascii() else ""
        if not near:
            continue
        characters[start] = near
        line = source.position(start).line
        if line == line_reported:
            continue
        line_reported = line
        word = _word_around(text, start)
        latin = "".join(_lookalike(character) or character for character in word)
        diagnostics.append(
            make_diagnostic(
                "PS130",
                f"unexpected character `{token}`, {character_name(token)}",
                Span(source, start, start + 1),
                label=f"looks like `{near}`",
                help=f"write `{latin}`" + (" in Latin letters" if near.isalpha() else ""),
            )
        )
    return "".join(characters), diagnostics


def _hidden_character(source: Source, at: int) -> Diagnostic:
    return make_diagnostic(
        "PS133",
        f"invisible character {character_name(source.text[at])}",
        Span(source, at, at + 1),
        label="the text that is compared differs from the text that is shown",
        help="remove it",
    )


def _word_around(text: str, at: int) -> str:
    """The word of any alphabet that the character is in; the character itself where it is a sign."""
    if not (text[at].isalnum() or text[at] == "_"):
        return text[at]
    start, end = at, at + 1
    while start and (text[start - 1].isalnum() or text[start - 1] == "_"):
        start -= 1
    while end < len(text) and (text[end].isalnum() or text[end] == "_"):
        end += 1
    return text[start:end]
