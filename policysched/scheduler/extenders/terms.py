"""What the core knows of an extender that the settings name: enough to say who is to be asked about which pod."""

from collections.abc import Mapping
from dataclasses import dataclass

from policysched.lang.diagnostics.catalogue import diagnostic
from policysched.lang.ir.program import Extender, Program
from policysched.model.objects import Pod
from policysched.text import Diagnostic


@dataclass(frozen=True, slots=True)
class ExtenderTerms:
    """`filters`, `scores`: which of the two it can be asked. `resources`: it has a say about pods that ask for one of
    these alone (empty: about all). `at_once`: how many pods it is asked about at a time."""

    filters: bool
    scores: bool
    resources: frozenset[str] = frozenset()
    at_once: int = 1

    def concern(self, pod: Pod) -> bool:
        return not self.resources or any(
            name in pod.requests or name in pod.limits for name in self.resources
        )


Extenders = Mapping[str, ExtenderTerms]


def not_to_be_asked(program: Program, extenders: Extenders) -> tuple[Diagnostic, ...]:
    """An error for each `extender` of a policy that these cannot be asked for; without any it can run with them."""
    found = []
    for one in program.extenders:
        why = _why_not(one, extenders)
        if why is not None:
            found.append(diagnostic("PS906", f"extender `{one.name}` {why}", one.span, label="asked here"))
    return tuple(found)


def _why_not(one: Extender, extenders: Extenders) -> str | None:
    terms = extenders.get(one.name)
    if terms is None:
        there = ", ".join(sorted(extenders)) or "none"
        return f"is not named in the settings (they name: {there})"
    if one.weight is not None and not terms.scores:
        return "has a weight, and the settings name no verb to ask it for scores"
    if one.weight is None and not terms.filters:
        return "is asked for nothing: no weight here, and no verb to filter in the settings"
    return None


def asked_about(program: Program, pod: Pod, extenders: Extenders) -> tuple[Extender, ...]:
    """Those of the policy's extenders that have a say about the pod, in its order."""
    return tuple([one for one in program.extenders if extenders[one.name].concern(pod)])
