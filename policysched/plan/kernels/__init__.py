"""The built-ins of kube-scheduler over columns, one module each, under the names that `lang.builtins` declares."""

from collections.abc import Callable, Mapping

from policysched.cluster.objects import Pod
from policysched.plan.column_kinds import (
    Allocatable,
    ColumnKind,
    Name,
    PodCount,
    PortSet,
    Requested,
    ScoringRequested,
    TaintSet,
    Unschedulable,
)
from policysched.plan.kernel import FilterKernel, Params, ScoreKernel
from policysched.plan.kernels import (
    image_locality,
    node_affinity,
    node_name,
    node_ports,
    node_resources_balanced_allocation,
    node_resources_fit,
    node_unschedulable,
    taint_toleration,
)

FILTERS: Mapping[str, Callable[[Pod, Params], FilterKernel | None]] = {
    "node_unschedulable": node_unschedulable.bind_filter,
    "node_name": node_name.bind_filter,
    "taint_toleration": taint_toleration.bind_filter,
    "node_affinity": node_affinity.bind_filter,
    "node_ports": node_ports.bind_filter,
    "node_resources_fit": node_resources_fit.bind_filter,
}
SCORES: Mapping[str, Callable[[Pod, Params], ScoreKernel | None]] = {
    "taint_toleration": taint_toleration.bind_score,
    "node_affinity": node_affinity.bind_score,
    "node_resources_fit": node_resources_fit.bind_score,
    "node_resources_balanced_allocation": node_resources_balanced_allocation.bind_score,
    "image_locality": image_locality.bind_score,
}

COLUMNS: Mapping[str, tuple[ColumnKind, ...]] = {
    "node_unschedulable": (Unschedulable(),),
    "taint_toleration": (TaintSet(),),
    "node_affinity": (Name(),),
    "node_ports": (PortSet(),),
    "node_resources_fit": (
        PodCount(),
        *(Allocatable(resource) for resource in ("cpu", "memory", "pods")),
        *(Requested(resource) for resource in ("cpu", "memory")),
        *(ScoringRequested(resource) for resource in ("cpu", "memory")),
    ),
    "node_resources_balanced_allocation": (
        *(Allocatable(resource) for resource in ("cpu", "memory")),
        *(Requested(resource) for resource in ("cpu", "memory")),
    ),
}
"""The columns that nearly every pod needs, made when a plan is prepared; the others when a pod first asks."""
