"""Capabilities of configured extenders: which calls they support, and the pods they apply to."""

from collections.abc import Mapping
from dataclasses import dataclass

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.ir.program import Extender, Program
from policysched.model.pods import Pod
from policysched.text import Diagnostic


@dataclass(frozen=True, slots=True)
class ExtenderCapabilities:
    """What an extender is configured for.

    `filters`, `scores`: the verbs it supports. `resources`: it applies only to pods that request one
    of these (empty: to all). `concurrent_calls_max`: the limit of concurrent calls.
    """

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
    """An error for each `extender` of the policy that is missing or lacks the verb."""
    diagnostics = []
    for extender in program.extenders:
        reason = _unusable_reason(extender, extenders)
        if reason is not None:
            diagnostics.append(
                make_diagnostic(
                    "PS906", f"extender `{extender.name}` {reason}", extender.span, label="used here"
                )
            )
    return tuple(diagnostics)


def _unusable_reason(extender: Extender, extenders: ExtendersByName) -> str | None:
    capabilities = extenders.get(extender.name)
    if capabilities is None:
        names = ", ".join(sorted(extenders)) or "none"
        return f"is not configured in the settings (configured: {names})"
    if extender.weight is not None and not capabilities.scores:
        return "has a weight, but the settings configure no prioritize verb for it"
    if extender.weight is None and not capabilities.filters:
        return "has no effect: it has no weight, and the settings configure no filter verb for it"
    return None


def applicable_extenders(program: Program, pod: Pod, extenders: ExtendersByName) -> tuple[Extender, ...]:
    """The extenders of the policy that apply to the pod, in the order of the policy."""
    return tuple([extender for extender in program.extenders if extenders[extender.name].applies_to(pod)])
