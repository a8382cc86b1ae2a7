"""Running totals of the pods on one node."""

from dataclasses import dataclass, field

from policysched.cluster.counted_set import CountedSet
from policysched.model.identifiers import PodUid
from policysched.model.pods import HostPort, HostPortNumbers, Pod

UsedPort = HostPort | tuple[str, int] | HostPortNumbers
"""A host port with its address, or its protocol and number alone, or all of a pod that has very many."""
MANY_PORTS: UsedPort = ("", 0)
"""Among the ports of a node where some are `HostPortNumbers`."""
UsedDisk = tuple[tuple[str, ...], bool]
"""An identity of a disk, and whether its use is read-only."""

FURTHER_PODS = "further pods"
"""Requested by a stand-in of many pods: how many it counts as beside itself. No resource can have this name."""

REQUESTED_MAX = 2**62 - 1
"""Upper limit of a reported total, so that one more request of so much can be added within int64."""


@dataclass(slots=True)
class NodeUsage:
    """Totals over the pods assumed, prebound or bound on a node.

    `requested` sums `Pod.requests` by resource, without zeros; `scoring_cpu_milli` and
    `scoring_memory_bytes` sum `Pod.scoring_requests_placed`. `ports`: the host ports of the pods, each with
    its address and also without. `disks`: those that the pods mount without a claim.
    """

    requested: dict[str, int] = field(default_factory=dict)
    scoring_cpu_milli: int = 0
    scoring_memory_bytes: int = 0
    ports: CountedSet[UsedPort] = field(default_factory=CountedSet)
    disks: CountedSet[UsedDisk] = field(default_factory=CountedSet)
    pods: dict[PodUid, Pod] = field(default_factory=dict)

    def add(self, pod: Pod) -> None:
        self._adjust(pod, 1)
        self.pods[pod.uid] = pod

    def subtract(self, pod: Pod) -> None:
        self._adjust(pod, -1)
        del self.pods[pod.uid]

    @property
    def pod_count(self) -> int:
        """How many pods are on the node."""
        return min(len(self.pods) + self.requested.get(FURTHER_PODS, 0), REQUESTED_MAX)

    def requested_capped(self, resource: str) -> int:
        """The total of a resource as rules read it, at most REQUESTED_MAX. The total itself stays
        exact, so that pods can be subtracted again."""
        return min(self.requested.get(resource, 0), REQUESTED_MAX)

    def nonzero(self) -> tuple[object, ...]:
        """All totals as one comparable value, without entries that are zero."""
        requested = {resource: amount for resource, amount in self.requested.items() if amount}
        return (
            requested,
            self.scoring_cpu_milli,
            self.scoring_memory_bytes,
            self.ports,
            self.disks,
            self.pods.keys(),
        )

    def _adjust(self, pod: Pod, sign: int) -> None:
        for resource, amount in pod.requests.items():
            if total := self.requested.get(resource, 0) + sign * amount:
                self.requested[resource] = total
            else:
                self.requested.pop(resource, None)
        self.scoring_cpu_milli += sign * pod.scoring_requests_placed[0]
        self.scoring_memory_bytes += sign * pod.scoring_requests_placed[1]
        for port in pod.host_ports:
            self.ports.add((port, (port.protocol, port.port)), sign)
        if pod.host_port_numbers:
            self.ports.add((MANY_PORTS, *pod.host_port_numbers), sign)
        for disk in pod.disks:
            self.disks.add([(identity, disk.read_only) for identity in disk.identities], sign)
