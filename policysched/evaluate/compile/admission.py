"""What refuses a pod before any node is looked at, and what is said of it once."""

from policysched.evaluate.scalar.eval_context import Seen
from policysched.evaluate.scalar.leaves import input_text
from policysched.lang.ir.program import Input, Program
from policysched.lang.types.records import NoValue, held_value
from policysched.model.messages import (
    CLAIMS_WITHOUT_A_RULE,
    DEVICES_WITHOUT_A_RULE,
    uncovered_message,
)
from policysched.text.sanitize import one_line


class Admission:
    """The inputs of pod and namespace, in the order in which they are declared."""

    def __init__(self, program: Program, *, sees_to_claims: bool, sees_to_devices: bool) -> None:
        self._sees_to_claims = sees_to_claims
        self._sees_to_devices = sees_to_devices
        self._inputs = [
            (declared, input_text(declared))
            for declared in program.inputs.values()
            if declared.owner != "node"
        ]
        self._refusing = [
            (declared, text_of)
            for declared, text_of in self._inputs
            if declared.required_text is not None or declared.invalid_text is not None
        ]

    def refusal(self, seen: Seen) -> str | None:
        """The text for which the pod stays pending, None where nothing of its own holds it back."""
        for declared, text_of in self._refusing:
            refusal = _refusal(declared, text_of(seen))
            if refusal is not None:
                return refusal
        if seen.pod.uncovered:
            return uncovered_message(seen.pod.uncovered)
        if seen.pod.claims and not self._sees_to_claims:
            return CLAIMS_WITHOUT_A_RULE
        return DEVICES_WITHOUT_A_RULE if seen.pod.device_claims and not self._sees_to_devices else None

    def warnings(self, seen: Seen) -> tuple[str, ...]:
        """Invalid values that count as absent, each in a sentence."""
        return tuple(
            f"input {declared.name}: `{one_line(text[:64])}` is no {declared.type.present()} and counts as absent"
            for declared, text_of in self._inputs
            if declared.invalid_default and (text := text_of(seen)) is not None and _invalid(declared, text)
        )


def _refusal(declared: Input, text: str | None) -> str | None:
    if text is not None:
        found = held_value(text, declared.type, declared.unit, declared.at)
        if not isinstance(found, NoValue):
            return None
        if found is NoValue.INVALID and declared.invalid_text is not None:
            return declared.invalid_text
    return declared.required_text if declared.default is None else None


def _invalid(declared: Input, text: str) -> bool:
    return held_value(text, declared.type, declared.unit, declared.at) is NoValue.INVALID
