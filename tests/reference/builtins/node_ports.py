"""Filter: no pod on the node uses a host port of the pod. Host ports conflict if protocol and port
are equal, and the addresses are equal or one is `0.0.0.0`."""

from policysched.model.pods import HostPort, Pod
from tests.reference.builtin_interface import BuiltinParams, ClusterFacts, FilterReasons, NodeInfo

_EVERY_ADDRESS = "0.0.0.0"
_REJECTED = FilterReasons(("node(s) didn't have free ports for the requested pod ports",), resolvable=True)


def filter_node(
    pod: Pod, node_info: NodeInfo, params: BuiltinParams, facts: ClusterFacts
) -> FilterReasons | None:
    held_ports = [port for other in node_info.usage.pods.values() for port in other.host_ports]
    if any(_ports_conflict(wanted, held) for wanted in pod.host_ports for held in held_ports):
        return _REJECTED
    many = [numbers for other in node_info.usage.pods.values() for numbers in other.host_port_numbers]
    if any(
        wanted.protocol == each.protocol and wanted.port in each for wanted in pod.host_ports for each in many
    ):
        return _REJECTED
    return None


def _ports_conflict(wanted: HostPort, held: HostPort) -> bool:
    if (wanted.protocol, wanted.port) != (held.protocol, held.port):
        return False
    return wanted.ip == held.ip or _EVERY_ADDRESS in (wanted.ip, held.ip)
