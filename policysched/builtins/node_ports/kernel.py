"""Host ports: a clash is asked once a distinct set of held ports and gathered."""

import numpy as np

from policysched.evaluate.columns.column_kinds import PortSet
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View, by_code
from policysched.evaluate.kernel import Around, FilterKernel, Params, PlainFilter, Touch
from policysched.model.objects import HostPort, Pod

COLUMNS = (PortSet(),)
_EVERY_ADDRESS = "0.0.0.0"


def bind_filter(pod: Pod, params: Params, around: Around) -> FilterKernel | None:
    return _Filter(pod.host_ports) if pod.host_ports else None


class _Filter(PlainFilter):
    touch = Touch.NODE | Touch.USAGE
    reason = "node(s) didn't have free ports for the requested pod ports"
    resolvable = True

    def __init__(self, wanted: tuple[HostPort, ...]) -> None:
        self._wanted = wanted

    def refused(self, view: View) -> Array:
        return by_code(view.column(PortSet()), view.codes.ports.values, self._clashes, np.bool_)

    def _clashes(self, held: frozenset[HostPort]) -> bool:
        return any(_clash(wanted, one) for wanted in self._wanted for one in held)


def _clash(wanted: HostPort, held: HostPort) -> bool:
    if (wanted.protocol, wanted.port) != (held.protocol, held.port):
        return False
    return wanted.ip == held.ip or _EVERY_ADDRESS in (wanted.ip, held.ip)
