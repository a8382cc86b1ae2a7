"""Regular expressions in CEL: Kubernetes' library regex, by RE2, whose syntax and matches are those of Go.

Texts and positions are bytes, so that a search does not convert the text again. Source: `regex.go` in
k8s.io/apiserver/pkg/cel/library v0.37.2, `regexp` of Go 1.26.
"""

from typing import Any


def find(text: str, pattern: str) -> str:
    match = _compiled(pattern).search(text.encode())
    return match[0].decode() if match else ""


def find_all(text: str, pattern: str, most: int = -1) -> list[str]:
    """At most so many; a negative number is no limit. An empty match that touches the match before it does not count."""
    compiled, encoded = _compiled(pattern), text.encode()
    matches: list[str] = []
    at, before = 0, -1
    while at <= len(encoded) and not 0 <= most <= len(matches):
        match = compiled.search(encoded, at)
        if match is None:
            break
        start, end = match.span()
        if end > at or start != before:
            matches.append(encoded[start:end].decode())
        before = end
        at = end if end > at else _next_character(encoded, at)
    return matches


def _compiled(pattern: str) -> Any:
    """RE2 keeps the latest ones."""
    try:
        import re2
    except ImportError:
        raise ValueError("find and findAll need the package google-re2, which is not installed") from None
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        message = error.args[0].decode() if isinstance(error.args[0], bytes) else error.args[0]
        raise ValueError(f"Illegal regex: {message}") from None


def _next_character(encoded: bytes, at: int) -> int:
    at += 1
    while at < len(encoded) and encoded[at] & 0xC0 == 0x80:
        at += 1
    return at
