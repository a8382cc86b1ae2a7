"""Values in the words of a rule's text."""

from policysched.evaluate.scalar.eval_context import EvalValue
from policysched.lang.types.kinds import Type
from policysched.lang.types.units import format_value
from policysched.model.messages import MISSING_TEXT


def format_value_or_missing(value: EvalValue, of: Type) -> str:
    return MISSING_TEXT if value is None else format_value(value, of)
