"""Host ports: conflicts are computed once for each distinct set of used ports."""

from dataclasses import replace

import numpy as np

from policysched.cluster.node_usage import MANY_PORTS, UsedPort
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
from policysched.model.pods import HostPort, HostPortNumbers, Pod

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
        self._conflicting = frozenset(
            port for wanted_port in wanted for port in _conflicting_ports(wanted_port)
        )

    def rejected(self, view: View) -> Array:
        return map_codes(
            view.column(PortSetColumn()), view.codes.ports.values, self._conflicts_with_any, np.bool_
        )

    def _conflicts_with_any(self, used_ports: frozenset[UsedPort]) -> bool:
        if not self._conflicting.isdisjoint(used_ports):
            return True
        return MANY_PORTS in used_ports and any(map(self._conflicts_with_many, used_ports))

    def _conflicts_with_many(self, used: UsedPort) -> bool:
        return isinstance(used, HostPortNumbers) and any(
            wanted.protocol == used.protocol and wanted.port in used for wanted in self._wanted
        )


def _conflicting_ports(wanted: HostPort) -> tuple[UsedPort, ...]:
    """With which used ports it conflicts: the same on its own address or on all; on all addresses the same on any."""
    if wanted.ip == _ANY_ADDRESS:
        return ((wanted.protocol, wanted.port),)
    return (wanted, replace(wanted, ip=_ANY_ADDRESS))
