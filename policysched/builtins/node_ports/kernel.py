"""Host ports: conflicts are computed once for each distinct set of used ports."""

import numpy as np

from policysched.evaluate.columns.column_kinds import PortSetColumn
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View, map_codes
from policysched.evaluate.kernel import (
    ClusterContext,
    Dependency,
    FilterKernel,
    FilterKernelBase,
    KernelParams,
)
from policysched.model.pods import HostPort, Pod

COLUMNS = (PortSetColumn(),)
_ANY_ADDRESS = "0.0.0.0"


def specialize_filter(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> FilterKernel | None:
    return _Filter(pod.host_ports) if pod.host_ports else None


class _Filter(FilterKernelBase):
    depends_on = Dependency.NODE | Dependency.USAGE
    reason = "node(s) didn't have free ports for the requested pod ports"
    resolvable = True

    def __init__(self, wanted: tuple[HostPort, ...]) -> None:
        self._wanted = wanted

    def rejected(self, view: View) -> Array:
        return map_codes(
            view.column(PortSetColumn()), view.codes.ports.values, self._conflicts_with_any, np.bool_
        )

    def _conflicts_with_any(self, used_ports: frozenset[HostPort]) -> bool:
        return any(_conflicts(wanted, used) for wanted in self._wanted for used in used_ports)


def _conflicts(wanted: HostPort, used: HostPort) -> bool:
    if (wanted.protocol, wanted.port) != (used.protocol, used.port):
        return False
    return wanted.ip == used.ip or _ANY_ADDRESS in (wanted.ip, used.ip)
