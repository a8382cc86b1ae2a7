"""The built-ins by name, in kube-scheduler's order, which is also that of `include kube_default`.

A new built-in is a folder beside this file and one line in `_PLUGIN_ORDER`. Source of the order:
`pkg/scheduler/apis/config/v1/default_plugins.go`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module

from policysched.builtins.declaration import BuiltinDeclaration

_PLUGIN_ORDER = (
    "node_name",
    "node_unschedulable",
    "taint_toleration",
    "node_affinity",
    "node_ports",
    "node_resources_fit",
    "volume_restrictions",
    "node_volume_limits",
    "volume_binding",
    "volume_zone",
    "pod_topology_spread",
    "inter_pod_affinity",
    "dynamic_resources",
    "node_resources_balanced_allocation",
    "image_locality",
    "node_declared_features",
)


def _discover() -> dict[str, BuiltinDeclaration]:
    declarations = {
        name: import_module(f"policysched.builtins.{name}.declaration").DECLARATION for name in _PLUGIN_ORDER
    }
    assert all(name == declaration.name for name, declaration in declarations.items())
    return declarations


BUILTINS: Mapping[str, BuiltinDeclaration] = _discover()

KUBE_DEFAULT_VERSION = "1.37"
"""The kube-scheduler release whose default filters, scores and weights `include kube_default` uses."""


@dataclass(frozen=True, slots=True)
class KubeSchedulerRelease:
    """How the defaults of an older kube-scheduler differ from `KUBE_DEFAULT_VERSION`: built-ins that
    come before all others, missing built-ins, built-ins without a score, values of parameters, and
    what PostFilter says. Everything else is the same, including weights and reasons. Sources: the
    plugins in kubernetes v1.34.3, v1.35.0, v1.36.3 and v1.37.2, and the defaults of their feature
    gates.

    `says_claims`: DynamicResources' PostFilter says what it did not do. `says_placement`: the message
    of a pod that preempts others says on which node and how many.
    """

    first_builtins: tuple[str, ...] = ()
    missing_builtins: frozenset[str] = frozenset()
    builtins_without_score: frozenset[str] = frozenset()
    filter_parameter_values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    score_parameter_values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    says_claims: bool = True
    says_placement: bool = False

    @property
    def builtins(self) -> tuple[BuiltinDeclaration, ...]:
        """The built-ins of the release in its order."""
        names = dict.fromkeys((*self.first_builtins, *BUILTINS))
        return tuple(BUILTINS[name] for name in names if name not in self.missing_builtins)

    @property
    def default_filters(self) -> tuple[str, ...]:
        return tuple(builtin.name for builtin in self.builtins if builtin.filters)


_UNTIL_1_36 = KubeSchedulerRelease(
    first_builtins=("node_unschedulable",),
    builtins_without_score=frozenset({"volume_binding"}),
    filter_parameter_values={"node_volume_limits": {"missing_drivers": "ignore"}},
    score_parameter_values={"image_locality": {"image_volumes": "size"}},
)

_UNTIL_1_35 = replace(
    _UNTIL_1_36,
    missing_builtins=frozenset({"node_declared_features"}),
    filter_parameter_values={
        **_UNTIL_1_36.filter_parameter_values,
        "dynamic_resources": {"extended_resources": "no"},
    },
    score_parameter_values={
        "node_resources_balanced_allocation": {"formula": "balance"},
        "image_locality": {"image_volumes": "no"},
    },
)

_UNTIL_1_34 = replace(
    _UNTIL_1_35, builtins_without_score=_UNTIL_1_35.builtins_without_score | {"dynamic_resources"}
)

KUBE_SCHEDULER_RELEASES: Mapping[str, KubeSchedulerRelease] = {
    "1.34": _UNTIL_1_34,
    "1.35": _UNTIL_1_35,
    "1.36": _UNTIL_1_36,
    KUBE_DEFAULT_VERSION: KubeSchedulerRelease(says_claims=False, says_placement=True),
}
"""The releases whose defaults can be included, oldest first."""


def release_of_filters(filters: Sequence[str]) -> KubeSchedulerRelease | None:
    """The newest release whose default filters are among these, in the release's order. None: they
    are those of no release.
    """
    for release in reversed(list(KUBE_SCHEDULER_RELEASES.values())):
        remaining = iter(filters)
        if all(name in remaining for name in release.default_filters):
            return release
    return None
