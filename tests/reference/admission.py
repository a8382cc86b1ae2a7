"""What refuses a pod before any node is looked at: its inputs, and what no built-in covers."""

from policysched.lang.ir.program import sees_to_claims, sees_to_devices
from policysched.model.messages import (
    CLAIMS_WITHOUT_A_RULE,
    DEVICES_WITHOUT_A_RULE,
    uncovered_message,
)
from tests.reference.context import Context
from tests.reference.inputs import Refused, read_input


def pod_refusal(context: Context) -> str | None:
    """The first of: an input of the pod or its namespace that refuses it, in the order in which they are declared;
    what the pod uses and nothing covers; claims that no rule of the policy sees to."""
    for declared in context.program.inputs.values():
        if declared.owner != "node":
            outcome = read_input(declared, context)
            if isinstance(outcome, Refused):
                return outcome.text
    if context.pod.uncovered:
        return uncovered_message(context.pod.uncovered)
    if context.pod.claims and not sees_to_claims(context.program):
        return CLAIMS_WITHOUT_A_RULE
    if context.pod.device_claims and not sees_to_devices(context.program):
        return DEVICES_WITHOUT_A_RULE
    return None
