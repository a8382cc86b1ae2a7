"""What the core knows of an extender that the settings name: enough to say who is to be asked about which pod."""

from collections.abc import Mapping
from dataclasses import dataclass

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.ir.program import Extender, Program
from policysched.model.pods import Pod
from policysched.text import Diagnostic


@dataclass(frozen=True, slots=True)
class ExtenderCapabilities:
    """`filters`, `scores`: which of the two it can be asked. `resources`: it has a say about pods that ask for one of
    these alone (empty: about all). `concurrent_calls_max`: how many pods it is asked about at a time."""

    filters: bool
    scores: bool
    resources: frozenset[str] = frozenset()
    concurrent_calls_max: int = 1

    def applies_to(self, pod: Pod) -> bool:
        return not self.resources or any(
            name in pod.requests or name in pod.limits for name in self.resources
        )


ExtendersByName = Mapping[str, ExtenderCapabilities]


def unusable_extenders(program: Program, extenders: ExtendersByName) -> tuple[Diagnostic, ...]:
    """An error for each `extender` of a policy that these cannot be asked for; without any it can run with them."""
    found = []
    for one in program.extenders:
        why = _unusable_reason(one, extenders)
        if why is not None:
            found.append(
                make_diagnostic("PS906", f"extender `{one.name}` {why}", one.span, label="asked here")
            )
    return tuple(found)


def _unusable_reason(one: Extender, extenders: ExtendersByName) -> str | None:
    terms = extenders.get(one.name)
    if terms is None:
        there = ", ".join(sorted(extenders)) or "none"
        return f"is not named in the settings (they name: {there})"
    if one.weight is not None and not terms.scores:
        return "has a weight, and the settings name no verb to ask it for scores"
    if one.weight is None and not terms.filters:
        return "is asked for nothing: no weight here, and no verb to filter in the settings"
    return None


def applicable_extenders(program: Program, pod: Pod, extenders: ExtendersByName) -> tuple[Extender, ...]:
    """Those of the policy's extenders that have a say about the pod, in its order."""
    return tuple([one for one in program.extenders if extenders[one.name].applies_to(pod)])
