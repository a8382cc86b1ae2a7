"""Change stamps of devices: numbers that grow with each change. Equal stamps mean that a cached
result is still valid."""

from collections.abc import Hashable

from policysched.model.identifiers import NodeName, ResourceClaimKey


class DeviceChangeStamps:
    """One counter for all stamps. `latest` is the stamp of the last change of slices, classes,
    served kinds or usage; claims have their own stamps."""

    def __init__(self) -> None:
        self.latest = 0
        self._last_stamp = 0
        self._shared = 0
        self._classes = 0
        self._nodes: dict[NodeName, int] = {}
        self._shared_slices = 0
        self._slices: dict[NodeName, int] = {}
        self._claims: dict[ResourceClaimKey, int] = {}
        self._changed_nodes: set[NodeName] = set()

    # ── changes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def claim_changed(self, key: ResourceClaimKey) -> None:
        self._claims[key] = self._next_stamp()

    def claim_deleted(self, key: ResourceClaimKey) -> None:
        self._claims.pop(key, None)
        self._next_stamp()

    def pool_changed(self, node: NodeName | None) -> None:
        """Slices or usage of a pool changed. `node` is the only node that can use it; None: several
        can."""
        stamp = self._advance_latest()
        if node is None:
            self._shared = stamp
        else:
            self._nodes[node] = stamp
            self._changed_nodes.add(node)

    def slices_changed(self, node: NodeName | None) -> None:
        """As `pool_changed`, where not only allocations did."""
        self.pool_changed(node)
        if node is None:
            self._shared_slices = self.latest
        else:
            self._slices[node] = self.latest

    def classes_changed(self) -> None:
        self._classes = self._advance_latest()

    def kinds_changed(self) -> None:
        self._advance_latest()

    def _advance_latest(self) -> int:
        self.latest = self._next_stamp()
        return self.latest

    def _next_stamp(self) -> int:
        self._last_stamp += 1
        return self._last_stamp

    # ── stamps ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def of_node(self, node: NodeName) -> tuple[int, int, int]:
        """The stamp of everything that a search on this node reads: its own devices, shared devices
        and classes."""
        return self._nodes.get(node, 0), self._shared, self._classes

    @property
    def last(self) -> int:
        """Grows with each change, of claims too."""
        return self._last_stamp

    def of_slices(self, node: NodeName) -> tuple[int, int]:
        """The stamp of the devices that the node can use, allocated or not."""
        return self._slices.get(node, 0), self._shared_slices

    def of_shared_devices(self) -> Hashable:
        """The stamp of devices that several nodes can use, and of classes."""
        return self._shared, self._classes

    def of_claim(self, key: ResourceClaimKey) -> int:
        return self._claims.get(key, 0)

    def changed_nodes(self) -> set[NodeName]:
        """Nodes whose own devices or their usage changed since the last call."""
        changed, self._changed_nodes = self._changed_nodes, set()
        return changed
