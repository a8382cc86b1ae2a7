"""The devices available to pods: as observed, minus reservations. Kernels and the reference
implementation read this view."""

from collections.abc import Generator, Hashable, Iterable, Sequence

from policysched.cluster.devices.device_cache import DeviceCache
from policysched.cluster.devices.device_overlay import DeviceOverlay, Groups
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.cluster.devices.search_outcomes import SearchOutcome, Specs
from policysched.model.devices import DeviceAllocation, DeviceClass, DeviceKind, PoolId, ResourceClaim
from policysched.model.identifiers import PodUid, ResourceClaimKey
from policysched.model.nodes import Node
from policysched.model.pods import Pod


class AvailableDevices:
    """Observed devices and claims with all reservations, and optionally with those of a
    hypothetical cluster (`overlay`)."""

    __slots__ = ("_devices", "_overlay", "_uncached")

    def __init__(
        self, devices: DeviceCache, overlay: DeviceOverlay | None = None, *, uncached: bool = False
    ) -> None:
        """`uncached`: search without the allocation cache, to verify it."""
        self._devices = devices
        self._overlay = overlay
        self._uncached = uncached

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
        """The class whose devices provide the resource on nodes that do not offer it."""
        return self._devices.class_of_resource(resource)

    def has_extended_claim(self, pod: Pod) -> bool:
        """Whether a claim for the pod's extended resources exists, or may exist."""
        return bool(self._devices.extended_claims_of(pod.uid, pod.namespace))

    def is_reserved_for(self, claim: ResourceClaim, pod: PodUid) -> bool:
        """Whether the claim is reserved for the pod and stays so."""
        return claim.is_reserved_for(pod) and pod not in self._devices.releasing

    def allocation(self, key: ResourceClaimKey) -> DeviceAllocation | None:
        """The allocation of the claim: written, reserved, or in the overlay."""
        allocation = self._devices.allocation(key)
        return (
            self._overlay.allocations.get(key)
            if allocation is None and self._overlay is not None
            else allocation
        )

    def device_counts(self, device_class: DeviceClass, node: Node) -> tuple[int, int]:
        """How many devices of the class the node can use, and how many of them are allocated."""
        if self._uncached:
            return self._devices.allocation_cache.counts.count_uncached(device_class, node, self._overlay)
        return self._devices.allocation_cache.counts.of_node(device_class, node, self._overlay)

    def find(self, claims: Sequence[ResourceClaim], node: Node, specs: Specs) -> SearchOutcome:
        """Devices for the claims, which have these specs."""
        if self._uncached:
            return self._devices.allocation_cache.search_uncached(claims, node, self._overlay)
        return self._devices.allocation_cache.find(claims, node, self._overlay, specs)

    def still_has(self, choice: DeviceChoice, node: Node, *, same_slices: bool) -> bool:
        """Whether the devices that were chosen on the node are free, or allocated to the same claims. `same_slices`: since then."""
        claims = []
        for claim, allocation in choice.allocated:
            now = self.allocation(claim.key)
            if now is None:
                claims.append(claim)
            elif now != allocation:
                return False
        found = choice.found
        if found is None or len(found.devices) != len(claims):
            return not claims
        cache = self._devices.allocation_cache
        return cache.still_has(claims, node, self._overlay, found, same_slices)

    def groups(
        self, claims: Sequence[ResourceClaim], nodes: Sequence[Node | None], specs: Specs
    ) -> Generator[None, None, Groups]:
        """The positions of the nodes, together where `find` has the same result beside what the overlay allocates of devices that
        several nodes share. Yields for each node that is looked at."""
        overlay, group = self._overlay, self._devices.allocation_cache.group
        assert overlay is not None, "without an overlay nodes have no groups"
        return overlay.groups(specs, nodes, self.stamp, lambda node: group(claims, node, specs))

    @property
    def stamp(self) -> int:
        """Grows with each reservation and other changes."""
        return self._devices.stamps.latest

    @property
    def shared_stamp(self) -> Hashable:
        """Changes with devices that several nodes can use, with classes and with served kinds."""
        return self._devices.shared_stamp

    @property
    def results_stamp(self) -> Hashable:
        """The same, and whether the attempt accepts older results, or accepted some during an evaluation."""
        cache = self._devices.allocation_cache
        return self._devices.shared_stamp, cache.accepted, cache.epoch

    def stamps_of(self, keys: Iterable[ResourceClaimKey]) -> Hashable:
        """Equal stamps mean that cached results about these claims are valid on nodes whose own
        devices did not change. Changed nodes are reported by `changed_nodes` and the overlay."""
        devices, overlay = self._devices, self._overlay
        claims = tuple([devices.stamps.of_claim(key) for key in keys])
        shared = self.results_stamp
        if overlay is None:
            return shared, claims
        return (
            shared,
            claims,
            overlay.shared_changes,
            tuple([key in overlay.allocations for key in keys]),
        )

    def add_to_overlay(self, overlay: DeviceOverlay, choice: DeviceChoice) -> None:
        """Add the allocations of the choice to the overlay."""
        for claim, allocation in choice.allocated:
            if self.with_overlay(overlay).allocation(claim.key) is not None:
                continue
            overlay.allocations[claim.key] = allocation
            overlay.usage.add(allocation)
            for pool in {PoolId(device.device.driver, device.device.pool) for device in allocation.devices}:
                overlay.note_change(self._devices.exclusive_node_of(pool), allocation)
