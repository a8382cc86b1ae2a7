"""Running totals of the pods on one node."""

from dataclasses import dataclass, field

from policysched.model.identifiers import PodUid
from policysched.model.pods import HostPort, Pod
from policysched.model.storage import Disk

UsedPort = HostPort | tuple[str, int]
"""A host port with its address, or its protocol and number alone."""

REQUESTED_MAX = 2**62 - 1
"""Upper limit of a reported total, so that one more request can be added within int64."""


@dataclass(slots=True)
class NodeUsage:
    """Totals over the pods assumed, prebound or bound on a node.

    `requested` sums `Pod.requests` by resource, without zeros; `scoring_cpu_milli` and
    `scoring_memory_bytes` sum `Pod.scoring_requests_placed`. `ports` counts the pods on each host
    port. `used_ports` and `disks` are derived, and only computed again after a change.
    """

    requested: dict[str, int] = field(default_factory=dict)
    scoring_cpu_milli: int = 0
    scoring_memory_bytes: int = 0
    ports: dict[HostPort, int] = field(default_factory=dict)
    pods: dict[PodUid, Pod] = field(default_factory=dict)
    _used_ports: frozenset[UsedPort] | None = field(default=None, init=False, repr=False, compare=False)
    _disks: frozenset[Disk] | None = field(default=None, init=False, repr=False, compare=False)

    def add(self, pod: Pod) -> None:
        self._adjust(pod, 1)
        self.pods[pod.uid] = pod

    def subtract(self, pod: Pod) -> None:
        self._adjust(pod, -1)
        del self.pods[pod.uid]

    @property
    def used_ports(self) -> frozenset[UsedPort]:
        """The host ports in use, each with its address and also without."""
        if self._used_ports is None:
            numbers = [(port.protocol, port.port) for port in self.ports]
            self._used_ports = frozenset((*self.ports, *numbers))
        return self._used_ports

    @property
    def disks(self) -> frozenset[Disk]:
        """The disks that the pods mount without a claim."""
        if self._disks is None:
            self._disks = frozenset(disk for pod in self.pods.values() for disk in pod.disks)
        return self._disks

    def share(
        self, *, used_ports: frozenset[UsedPort] | None = None, disks: frozenset[Disk] | None = None
    ) -> None:
        """Take over equal sets of other nodes: identical sets are compared at once, equal ones item by item."""
        self._used_ports = used_ports or self._used_ports
        self._disks = disks or self._disks

    def requested_capped(self, resource: str) -> int:
        """The total of a resource as rules read it, at most REQUESTED_MAX. The total itself stays
        exact, so that pods can be subtracted again."""
        return min(self.requested.get(resource, 0), REQUESTED_MAX)

    def nonzero(self) -> tuple[object, ...]:
        """All totals as one comparable value, without entries that are zero."""
        requested = {resource: amount for resource, amount in self.requested.items() if amount}
        return requested, self.scoring_cpu_milli, self.scoring_memory_bytes, self.ports, self.pods.keys()

    def _adjust(self, pod: Pod, sign: int) -> None:
        for resource, amount in pod.requests.items():
            if total := self.requested.get(resource, 0) + sign * amount:
                self.requested[resource] = total
            else:
                self.requested.pop(resource, None)
        self.scoring_cpu_milli += sign * pod.scoring_requests_placed[0]
        self.scoring_memory_bytes += sign * pod.scoring_requests_placed[1]
        if pod.disks:
            self._disks = None
        if pod.host_ports:
            self._used_ports = None
        for port in pod.host_ports:
            left = self.ports.get(port, 0) + sign
            if left:
                self.ports[port] = left
            else:
                del self.ports[port]
