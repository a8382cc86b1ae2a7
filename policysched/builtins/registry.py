"""The built-ins by name, in kube-scheduler's order, which is also that of `include kube_default`.

A new built-in is a folder beside this file and one line in `_PLUGIN_ORDER`. Source of the order:
`pkg/scheduler/apis/config/v1/default_plugins.go`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module

from policysched.builtins.declaration import BuiltinDeclaration

_PLUGIN_ORDER = (
    "node_unschedulable",
    "node_name",
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

KUBE_DEFAULT_VERSION = "1.36"
"""The kube-scheduler release whose default filters, scores and weights `include kube_default` uses."""


@dataclass(frozen=True, slots=True)
class KubeSchedulerRelease:
    """How the defaults of an older kube-scheduler differ from `KUBE_DEFAULT_VERSION`: missing
    built-ins, built-ins without a score, and values of parameters. Everything else is the same, including weights and reasons. Sources: the plugins in kubernetes v1.34.3, v1.35.0 and
    v1.36.3, and the defaults of their feature gates.
    """

    missing_builtins: frozenset[str] = frozenset()
    builtins_without_score: frozenset[str] = frozenset()
    filter_parameter_values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    score_parameter_values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


_UNTIL_1_35 = KubeSchedulerRelease(
    missing_builtins=frozenset({"node_declared_features"}),
    filter_parameter_values={"dynamic_resources": {"extended_resources": "no"}},
    score_parameter_values={
        "node_resources_balanced_allocation": {"formula": "balance"},
        "image_locality": {"image_volumes": "no"},
    },
)

_UNTIL_1_34 = replace(_UNTIL_1_35, builtins_without_score=frozenset({"dynamic_resources"}))

KUBE_SCHEDULER_RELEASES: Mapping[str, KubeSchedulerRelease] = {
    "1.34": _UNTIL_1_34,
    "1.35": _UNTIL_1_35,
    KUBE_DEFAULT_VERSION: KubeSchedulerRelease(),
}
"""The releases whose defaults can be included, oldest first."""
