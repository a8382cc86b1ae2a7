"""What of kube-scheduler's default profile no built-in evaluates, by name: `show`, lint and the pages all print this one list.

A pod that uses one of these stays pending with words (`Pod.uncovered`, or a filter's own). Lint says it of what a text uses: all
where `kube_default` is included, else the parts of the built-ins that it names.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UnsupportedFeature:
    """`plugin` as kube-scheduler spells it; `usage` names the fields by which a pod uses it."""

    plugin: str
    usage: str
    effect: str = "the pod stays pending"

    @property
    def description(self) -> str:
        return f"{self.plugin}: {self.usage}: {self.effect}"


UNSUPPORTED_FEATURES: tuple[UnsupportedFeature, ...] = (
    UnsupportedFeature(
        "DynamicResources",
        "CEL selectors of devices with the libraries ip, cidr, url, format, sets, lists or regex",
        "no node is taken, in words that name the selector",
    ),
    UnsupportedFeature(
        "DynamicResources",
        "CEL selectors of devices where policysched runs elsewhere than on Linux on x86-64",
        "the pod stays pending, in words that name the package that is not there",
    ),
    UnsupportedFeature(
        "DynamicResources", "spec.resourceClaims of an unknown kind (neither a claim nor a template)"
    ),
    UnsupportedFeature("GangScheduling", "spec.schedulingGroup"),
)


def unsupported_features(plugins: Collection[str] | None) -> tuple[UnsupportedFeature, ...]:
    """Of these plugins of kube-scheduler; None: of all its default profile."""
    return tuple(one for one in UNSUPPORTED_FEATURES if plugins is None or one.plugin in plugins)
