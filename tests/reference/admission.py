"""What refuses a pod before any node is looked at: its inputs, and what no built-in covers."""

from policysched.lang.ir.program import handles_resource_claims, handles_volume_claims
from policysched.model.messages import (
    NO_DEVICE_FILTER_MESSAGE,
    NO_VOLUME_FILTER_MESSAGE,
    unsupported_message,
)
from tests.reference.context import ExpressionContext
from tests.reference.inputs import InputRefusal, read_input


def pod_refusal(context: ExpressionContext) -> str | None:
    """The first of: an input of the pod or its namespace that refuses it, in the order in which they are declared;
    what the pod uses and nothing covers; claims that no rule of the policy sees to."""
    for declared in context.program.inputs.values():
        if declared.owner != "node":
            outcome = read_input(declared, context)
            if isinstance(outcome, InputRefusal):
                return outcome.text
    if context.pod.uncovered:
        return unsupported_message(context.pod.uncovered)
    if context.pod.claims and not handles_volume_claims(context.program):
        return NO_VOLUME_FILTER_MESSAGE
    if context.pod.device_claims and not handles_resource_claims(context.program):
        return NO_DEVICE_FILTER_MESSAGE
    return None
