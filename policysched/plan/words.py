"""Values in the words of a rule's text."""

from policysched.lang.message import MISSING_TEXT
from policysched.lang.types import Type
from policysched.lang.units import format_value
from policysched.plan.seen import Value


def shown(value: Value, of: Type) -> str:
    return MISSING_TEXT if value is None else format_value(value, of)
