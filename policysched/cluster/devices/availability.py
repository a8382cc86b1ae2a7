"""The devices that there are to choose from, as kernels and the oracle see them."""

from collections.abc import Hashable, Iterable, Sequence

from policysched.cluster.devices.device_cache import Devices
from policysched.cluster.devices.finder import LaidDevices, Outcome
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.model.devices import Allocation, DeviceClass, DeviceKind, PoolId, ResourceClaim
from policysched.model.objects import Node, PodUid, ResourceClaimKey


class DeviceStock:
    """What there is to choose from: devices and claims as seen, with everything that is promised, and with what else is
    promised on a cluster that is not (`laid`)."""

    __slots__ = ("_devices", "_fresh", "_laid")

    def __init__(self, devices: Devices, laid: LaidDevices | None = None, *, fresh: bool = False) -> None:
        """`fresh`: each search is made anew, to be held against what is kept."""
        self._devices = devices
        self._laid = laid
        self._fresh = fresh

    def laid(self, laid: LaidDevices) -> "DeviceStock":
        return DeviceStock(self._devices, laid)

    @property
    def absent(self) -> frozenset[DeviceKind]:
        return self._devices.absent

    def claim(self, key: ResourceClaimKey) -> ResourceClaim | None:
        return self._devices.claims.get(key)

    def device_class(self, name: str) -> DeviceClass | None:
        return self._devices.classes.get(name)

    def class_of(self, resource: str) -> DeviceClass | None:
        """The class whose devices stand for the resource where nodes do not offer it."""
        return self._devices.class_of(resource)

    def has_made_for(self, pod: PodUid) -> bool:
        """Whether a claim for its extended resources is there, or may be."""
        return bool(self._devices.made_for(pod))

    def allocation(self, key: ResourceClaimKey) -> Allocation | None:
        """What the claim has, or is promised."""
        found = self._devices.allocation(key)
        return self._laid.allocations.get(key) if found is None and self._laid is not None else found

    def amounts(self, one: DeviceClass, node: Node) -> tuple[int, int]:
        """How many devices of the class the node can use, and how many of these are taken."""
        return self._devices.finder.amounts(one, node, self._laid)

    def find(self, claims: Sequence[ResourceClaim], node: Node) -> Outcome:
        if self._fresh:
            return self._devices.finder.search(claims, node, self._laid)
        return self._devices.finder.find(claims, node, self._laid)

    @property
    def stamp(self) -> int:
        """Moves with each promise, among other things."""
        return self._devices.stamps.latest

    @property
    def shared_stamp(self) -> Hashable:
        """Moves with what several nodes can use, and with classes."""
        return self._devices.shared_stamp

    def stamps_of(self, keys: Iterable[ResourceClaimKey]) -> Hashable:
        """Equal stamps, equal answers about these claims on every node whose own devices did not change: which did, `changed_nodes` says,
        and the overlay."""
        devices, laid = self._devices, self._laid
        claims = tuple([devices.stamps.of_claim(key) for key in keys])
        if laid is None:
            return devices.shared_stamp, claims
        return devices.shared_stamp, claims, laid.anywhere, tuple([key in laid.allocations for key in keys])

    def lay(self, laid: LaidDevices, choice: DeviceChoice) -> None:
        """As if the devices were given away."""
        for claim, given in choice.allocated:
            if self.laid(laid).allocation(claim.key) is not None:
                continue
            laid.allocations[claim.key] = given
            laid.use.add(given)
            for pool in {PoolId(one.device.driver, one.device.pool) for one in given.devices}:
                node = self._devices.node_of(pool)
                if node is None:
                    laid.anywhere += 1
                else:
                    laid.nodes[node] = laid.nodes.get(node, 0) + 1
