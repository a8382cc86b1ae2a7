"""What refuses a pod before any node is looked at, and what is said of it once."""

from collections.abc import Iterable, Mapping

from policysched.cluster.objects import AntiAffinityTerm, Pod, Requirement
from policysched.lang.message import ANTI_AFFINITY_OF_OTHERS, uncovered_message
from policysched.lang.program import Input, Program
from policysched.lang.units import parse_value
from policysched.plan.scalars import Seen, input_text


class Admission:
    """The inputs of pod and namespace, in the order in which they are declared."""

    def __init__(self, program: Program) -> None:
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
        return uncovered_message(seen.pod.uncovered) if seen.pod.uncovered else None

    def warnings(self, seen: Seen) -> tuple[str, ...]:
        """Invalid values that count as absent, each in a sentence."""
        return tuple(
            f"input {declared.name}: `{text[:64]}` is no {declared.type.present()} and counts as absent"
            for declared, text_of in self._inputs
            if declared.invalid_default and (text := text_of(seen)) is not None and _invalid(declared, text)
        )


def _refusal(declared: Input, text: str | None) -> str | None:
    if text is not None:
        if not _invalid(declared, text):
            return None
        if declared.invalid_text is not None:
            return declared.invalid_text
    return declared.required_text if declared.default is None else None


def _invalid(declared: Input, text: str) -> bool:
    return parse_value(text, declared.type, declared.unit) is None


def refusal_by_placed_pods(pod: Pod, terms: Iterable[AntiAffinityTerm]) -> str | None:
    """Required anti-affinity of placed pods works against newcomers, and no built-in evaluates it yet."""
    for term in terms:
        in_scope = term.namespaces is None or pod.namespace in term.namespaces
        if in_scope and all(_holds(one, pod.labels) for one in term.selector.requirements):
            return ANTI_AFFINITY_OF_OTHERS
    return None


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    found = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return found in requirement.values
        case "NotIn":
            return found not in requirement.values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt":
            raise AssertionError(f"a label selector has no operator {requirement.operator}")
