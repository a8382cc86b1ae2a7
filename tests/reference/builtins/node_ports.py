"""Filter: no pod on the node uses a host port of the pod. Host ports conflict if protocol and port
are equal, and the addresses are equal or one is `0.0.0.0`."""

from policysched.model.pods import HostPort, Pod
from tests.reference.builtin_interface import BuiltinParams, ClusterFacts, FilterReasons, NodeInfo

_EVERY_ADDRESS = "0.0.0.0"


def filter_node(
    pod: Pod, node_info: NodeInfo, params: BuiltinParams, facts: ClusterFacts
) -> FilterReasons | None:
    held_ports = [port for other in node_info.usage.pods.values() for port in other.host_ports]
    if any(_ports_conflict(wanted, held) for wanted in pod.host_ports for held in held_ports):
        return FilterReasons(("node(s) didn't have free ports for the requested pod ports",), resolvable=True)
    return None


def _ports_conflict(wanted: HostPort, held: HostPort) -> bool:
    if (wanted.protocol, wanted.port) != (held.protocol, held.port):
        return False
    return wanted.ip == held.ip or _EVERY_ADDRESS in (wanted.ip, held.ip)
