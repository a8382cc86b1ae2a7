"""What refuses a pod before any node is looked at, and what is said of it once."""

from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.evaluate.scalar.leaves import input_text
from policysched.lang.ir.declarations import Input
from policysched.lang.ir.program import Program
from policysched.lang.types.records import NoValueReason, parse_typed_value
from policysched.model.messages import (
    NO_DEVICE_FILTER_MESSAGE,
    NO_VOLUME_FILTER_MESSAGE,
    unsupported_message,
)
from policysched.text.sanitize import sanitize_line


class CompiledAdmission:
    """The inputs of pod and namespace, in the order in which they are declared."""

    def __init__(self, program: Program, *, covers_claims: bool, covers_devices: bool) -> None:
        self._covers_claims = covers_claims
        self._covers_devices = covers_devices
        self._inputs = [
            (declared, input_text(declared))
            for declared in program.inputs.values()
            if declared.owner != "node"
        ]
        self._required_inputs = [
            (declared, text_of)
            for declared, text_of in self._inputs
            if declared.required_text is not None or declared.invalid_text is not None
        ]

    def refusal(self, seen: EvalContext) -> str | None:
        """The text for which the pod stays pending, None where nothing of its own holds it back."""
        for declared, text_of in self._required_inputs:
            refusal = _refusal(declared, text_of(seen))
            if refusal is not None:
                return refusal
        if seen.pod.uncovered:
            return unsupported_message(seen.pod.uncovered)
        if seen.pod.claims and not self._covers_claims:
            return NO_VOLUME_FILTER_MESSAGE
        return NO_DEVICE_FILTER_MESSAGE if seen.pod.device_claims and not self._covers_devices else None

    def warnings(self, seen: EvalContext) -> tuple[str, ...]:
        """Invalid values that count as absent, each in a sentence."""
        return tuple(
            f"input {declared.name}: `{sanitize_line(text[:64])}` is no {declared.type.as_required()} and counts as absent"
            for declared, text_of in self._inputs
            if declared.invalid_default
            and (text := text_of(seen)) is not None
            and _is_invalid(declared, text)
        )


def _refusal(declared: Input, text: str | None) -> str | None:
    if text is not None:
        found = parse_typed_value(text, declared.type, declared.unit, declared.json_path)
        if not isinstance(found, NoValueReason):
            return None
        if found is NoValueReason.INVALID and declared.invalid_text is not None:
            return declared.invalid_text
    return declared.required_text if declared.default is None else None


def _is_invalid(declared: Input, text: str) -> bool:
    return parse_typed_value(text, declared.type, declared.unit, declared.json_path) is NoValueReason.INVALID
