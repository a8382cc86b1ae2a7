"""When devices last changed, on one clock that counts changes: equal stamps, equal answers."""

from collections.abc import Hashable

from policysched.model.identifiers import NodeName, ResourceClaimKey


class DeviceChangeStamps:
    """`latest` moves with every change of slices, classes, kinds and of what is taken; claims have stamps of their own beside it."""

    def __init__(self) -> None:
        self.latest = 0
        self._last_stamp = 0
        self._shared = 0
        self._classes = 0
        self._nodes: dict[NodeName, int] = {}
        self._claims: dict[ResourceClaimKey, int] = {}
        self._changed_nodes: set[NodeName] = set()

    # ── what changed ───────────────────────────────────────────────────────────────────────────────────────────────

    def claim_changed(self, key: ResourceClaimKey) -> None:
        self._claims[key] = self._next_stamp()

    def claim_deleted(self, key: ResourceClaimKey) -> None:
        self._claims.pop(key, None)
        self._next_stamp()

    def pool_changed(self, node: NodeName | None) -> None:
        """Slices of a pool, or what is taken of it. `node` alone can use it; None: several can."""
        stamp = self._advance_latest()
        if node is None:
            self._shared = stamp
        else:
            self._nodes[node] = stamp
            self._changed_nodes.add(node)

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

    # ── when ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def of_node(self, node: NodeName) -> tuple[int, int, int]:
        """Of all that a search on this node goes by: its own devices, those of several, and the classes."""
        return self._nodes.get(node, 0), self._shared, self._classes

    def of_slices(self, node: NodeName) -> tuple[int, int]:
        """The same without the classes."""
        return self._nodes.get(node, 0), self._shared

    def of_shared_devices(self) -> Hashable:
        """Of what more nodes than one can use, and of the classes."""
        return self._shared, self._classes

    def of_claim(self, key: ResourceClaimKey) -> int:
        return self._claims.get(key, 0)

    def changed_nodes(self) -> set[NodeName]:
        """Those whose own devices changed, or what is taken of them, since the last call."""
        changed, self._changed_nodes = self._changed_nodes, set()
        return changed
