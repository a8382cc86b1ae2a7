"""The devices that there are to choose from, as kernels and the oracle see them."""

from collections.abc import Hashable, Iterable, Sequence

from policysched.cluster.devices.allocation_cache import DeviceOverlay, SearchOutcome
from policysched.cluster.devices.device_cache import DeviceCache
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.model.devices import DeviceAllocation, DeviceClass, DeviceKind, PoolId, ResourceClaim
from policysched.model.identifiers import PodUid, ResourceClaimKey
from policysched.model.nodes import Node


class AvailableDevices:
    """What there is to choose from: devices and claims as seen, with everything that is promised, and with what else is
    promised on a cluster that is not (`laid`)."""

    __slots__ = ("_devices", "_fresh", "_overlay")

    def __init__(
        self, devices: DeviceCache, overlay: DeviceOverlay | None = None, *, uncached: bool = False
    ) -> None:
        """`uncached`: each search is made anew, to be held against what is kept."""
        self._devices = devices
        self._overlay = overlay
        self._fresh = uncached

    def with_overlay(self, overlay: DeviceOverlay) -> "AvailableDevices":
        return AvailableDevices(self._devices, overlay)

    @property
    def unserved_kinds(self) -> frozenset[DeviceKind]:
        return self._devices.unserved_kinds

    def claim(self, key: ResourceClaimKey) -> ResourceClaim | None:
        return self._devices.claims.get(key)

    def device_class(self, name: str) -> DeviceClass | None:
        return self._devices.classes.get(name)

    def class_of_resource(self, resource: str) -> DeviceClass | None:
        """The class whose devices stand for the resource where nodes do not offer it."""
        return self._devices.class_of_resource(resource)

    def has_extended_claim(self, pod: PodUid) -> bool:
        """Whether a claim for its extended resources is there, or may be."""
        return bool(self._devices.extended_claims_of(pod))

    def allocation(self, key: ResourceClaimKey) -> DeviceAllocation | None:
        """What the claim has, or is promised."""
        allocation = self._devices.allocation(key)
        return self._overlay.allocations.get(key) if allocation is None and self._overlay is not None else allocation

    def device_counts(self, device_class: DeviceClass, node: Node) -> tuple[int, int]:
        """How many devices of the class the node can use, and how many of these are taken."""
        return self._devices.allocation_cache.device_counts(device_class, node, self._overlay)

    def find(self, claims: Sequence[ResourceClaim], node: Node) -> SearchOutcome:
        if self._fresh:
            return self._devices.allocation_cache.search_uncached(claims, node, self._overlay)
        return self._devices.allocation_cache.find(claims, node, self._overlay)

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
        devices, laid = self._devices, self._overlay
        claims = tuple([devices.stamps.of_claim(key) for key in keys])
        if laid is None:
            return devices.shared_stamp, claims
        return (
            devices.shared_stamp,
            claims,
            laid.shared_changes,
            tuple([key in laid.allocations for key in keys]),
        )

    def add_to_overlay(self, overlay: DeviceOverlay, choice: DeviceChoice) -> None:
        """As if the devices were given away."""
        for claim, allocation in choice.allocated:
            if self.with_overlay(overlay).allocation(claim.key) is not None:
                continue
            overlay.allocations[claim.key] = allocation
            overlay.usage.add(allocation)
            for pool in {PoolId(device.device.driver, device.device.pool) for device in allocation.devices}:
                node = self._devices.exclusive_node_of(pool)
                if node is None:
                    overlay.shared_changes += 1
                else:
                    overlay.node_changes[node] = overlay.node_changes.get(node, 0) + 1
