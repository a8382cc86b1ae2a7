"""The words about a text that was not accepted: short enough for an event, precise enough to go to the place."""

import re

from policysched.lang.check.bundle import CheckedSource
from policysched.scheduler.limits import SECOND_NS
from policysched.text import Diagnostic, Severity

_HEADER = re.compile(r"^[ \t]*policy[ \t]+([a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)[ \t]+version\b", re.MULTILINE)
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def errors_of(one: CheckedSource) -> tuple[Diagnostic, ...]:
    """What keeps the text from being active; warnings do not."""
    return tuple(found for found in one.diagnostics if found.severity >= Severity.ERROR)


def rejection_message(one: CheckedSource) -> str:
    """The first error with its place and its help, and how many more there are:
    "main.policy:31:25 PS210 unknown metric `cpu_utl` (did you mean `cpu_util`?) (and 2 more)"."""
    errors = errors_of(one)
    assert errors, f"{one.key} has no error"
    first, more = errors[0], len(errors) - 1
    words = f"{_location(one.key, first)} {first.code} {first.message}"
    if first.help:
        words += f" ({first.help})"
    return f"{words} (and {more} more)" if more else words


def header_name(one: CheckedSource) -> str | None:
    """The policy's name as the header of a broken text gives it, where a line of it still reads as one."""
    if one.policy_name is not None:
        return one.policy_name
    for found in one.diagnostics:
        if found.span is not None and found.span.source.name.endswith(one.key):
            header = _HEADER.search(found.span.source.text)
            return header[1] if header else None
    return None


def short_sha(sha256: str) -> str:
    """The first six digits of a hash, enough to tell texts apart."""
    return sha256[:6]


def format_duration(ns: int) -> str:
    """`2h`, `3m`: the largest unit alone."""
    seconds = max(0, ns // SECOND_NS)
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return "0s"


def _location(key: str, found: Diagnostic) -> str:
    if found.span is None:
        return key
    source = found.span.source
    place = source.position(found.span.start)
    name = key if source.name.endswith(key) else source.name
    return f"{name}:{place.line}:{place.column}"
