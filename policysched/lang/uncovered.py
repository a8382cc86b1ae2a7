"""What of kube-scheduler's default profile no built-in evaluates yet.

A pod that uses one of these stays pending with words (`Pod.uncovered`). `show` prints this list, lint says it where
`kube_default` is included, and it shrinks as built-ins are added.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Uncovered:
    """`plugin` as kube-scheduler spells it; `uses` names the fields by which a pod uses it."""

    plugin: str
    uses: str
    happens: str = "the pod stays pending"


UNCOVERED: tuple[Uncovered, ...] = (
    Uncovered(
        "DynamicResources",
        "devices with bindingConditions",
        "claims get other devices; a pod whose claim has such a one stays pending",
    ),
    Uncovered("DynamicResources", "spec.resourceClaims of an unknown kind (neither a claim nor a template)"),
    Uncovered("GangScheduling", "spec.schedulingGroup"),
)
