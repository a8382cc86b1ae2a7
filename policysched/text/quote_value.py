"""YAML and JSON values in messages: in the syntax of those formats, and shortened."""

from collections.abc import Mapping
from typing import Any

_VALUE_CHARACTERS_MAX = 40


def quote_value(value: Any) -> str:
    """`null`, `true`, a number, or a string in backticks; collections are only called `a map` or `a list`."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return (
                f"`{value[:_VALUE_CHARACTERS_MAX]}…`" if len(value) > _VALUE_CHARACTERS_MAX else f"`{value}`"
            )
        case int() if abs(value) >= 10**_VALUE_CHARACTERS_MAX:  # Python refuses to print thousands of digits
            return f"a number of more than {_VALUE_CHARACTERS_MAX} digits"
        case int() | float():
            return str(value)
        case Mapping():
            return "a map"
        case list() | tuple():
            return "a list"
        case _:
            return f"`{value}`"
