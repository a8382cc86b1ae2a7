"""What refuses a pod before any node is looked at: its inputs, and what no built-in covers."""

from collections.abc import Mapping

from policysched.cluster.cache import Cache
from policysched.cluster.objects import AntiAffinityTerm, LabelSelector, Pod
from policysched.lang.message import ANTI_AFFINITY_OF_OTHERS, uncovered_message
from policysched.oracle.context import Context
from policysched.oracle.inputs import Refused, read_input


def pod_refusal(context: Context, cache: Cache) -> str | None:
    """The first of: an input of the pod or its namespace that refuses it, in the order in which they are declared;
    what the pod uses and nothing covers; the required anti-affinity of a placed pod that may mean this one."""
    for declared in context.program.inputs.values():
        if declared.owner != "node":
            outcome = read_input(declared, context)
            if isinstance(outcome, Refused):
                return outcome.text
    if context.pod.uncovered:
        return uncovered_message(context.pod.uncovered)
    if any(
        _may_refuse(term, context.pod)
        for name in cache.nodes
        for placed in cache.ledger.usage(name).pods.values()
        for term in placed.anti_affinity
    ):
        return ANTI_AFFINITY_OF_OTHERS
    return None


def _may_refuse(term: AntiAffinityTerm, pod: Pod) -> bool:
    in_scope = term.namespaces is None or pod.namespace in term.namespaces
    return in_scope and selects(term.selector, pod.labels)


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    for requirement in selector.requirements:
        found = labels.get(requirement.key)
        match requirement.operator:
            case "In":
                holds = found in requirement.values
            case "NotIn":
                holds = found not in requirement.values
            case "Exists":
                holds = found is not None
            case "DoesNotExist":
                holds = found is None
            case _:
                raise AssertionError(f"a label selector has no operator {requirement.operator}")
        if not holds:
            return False
    return True
