"""What refuses a pod before any node is looked at: its inputs, and what no built-in covers."""

from policysched.lang.message import uncovered_message
from policysched.oracle.context import Context
from policysched.oracle.inputs import Refused, read_input


def pod_refusal(context: Context) -> str | None:
    """The first of: an input of the pod or its namespace that refuses it, in the order in which they are declared;
    what the pod uses and nothing covers."""
    for declared in context.program.inputs.values():
        if declared.owner != "node":
            outcome = read_input(declared, context)
            if isinstance(outcome, Refused):
                return outcome.text
    if context.pod.uncovered:
        return uncovered_message(context.pod.uncovered)
    return None
