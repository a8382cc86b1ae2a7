"""Admission of a pod before any node is looked at, and warnings about its inputs."""

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
    """The inputs of pod and namespace in the order of their declaration, and the features that no
    rule covers.
    """

    def __init__(self, program: Program, *, covers_claims: bool, covers_devices: bool) -> None:
        self._removed = program.removed or None
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

    def rejection(self, context: EvalContext) -> str | None:
        """The message for which the pod stays pending; None: admitted."""
        if self._removed is not None:
            return self._removed
        for declared, text_of in self._required_inputs:
            rejection = _rejection(declared, text_of(context))
            if rejection is not None:
                return rejection
        if context.pod.uncovered:
            return unsupported_message(context.pod.uncovered)
        if context.pod.claims and not self._covers_claims:
            return NO_VOLUME_FILTER_MESSAGE
        return NO_DEVICE_FILTER_MESSAGE if context.pod.device_claims and not self._covers_devices else None

    def warnings(self, context: EvalContext) -> tuple[str, ...]:
        """A message for each invalid value that counts as absent."""
        return tuple(
            f"input {declared.name}: `{sanitize_line(text[:64])}` is not a valid {declared.type.as_required()}; treated as absent"
            for declared, text_of in self._inputs
            if declared.invalid_default
            and (text := text_of(context)) is not None
            and _is_invalid(declared, text)
        )


def _rejection(declared: Input, text: str | None) -> str | None:
    if text is not None:
        value = parse_typed_value(text, declared.type, declared.unit, declared.json_path)
        if not isinstance(value, NoValueReason):
            return None
        if value is NoValueReason.INVALID and declared.invalid_text is not None:
            return declared.invalid_text
    return declared.required_text if declared.default is None else None


def _is_invalid(declared: Input, text: str) -> bool:
    return parse_typed_value(text, declared.type, declared.unit, declared.json_path) is NoValueReason.INVALID
