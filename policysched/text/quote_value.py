"""A value that somebody wrote in YAML or JSON, as a sentence shows it: in the words of those formats, and cut."""

from collections.abc import Mapping
from typing import Any

_LONGEST = 40


def shown(value: Any) -> str:
    """`null`, `true`, a number, a text between backticks; of what holds others only that it is a map or a list."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f"`{value[:_LONGEST]}…`" if len(value) > _LONGEST else f"`{value}`"
        case int() if abs(value) >= 10**_LONGEST:  # Python does not even print one of thousands of digits
            return f"a number of more than {_LONGEST} digits"
        case int() | float():
            return str(value)
        case Mapping():
            return "a map"
        case list() | tuple():
            return "a list"
        case _:
            return f"`{value}`"
