"""The ledger of placements: which pod is on which node, and what each node's pods request."""

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import Protocol

from policysched.cluster.namespace_shares import Amounts, NamespaceShares, add_pod
from policysched.cluster.node_usage import NodeUsage
from policysched.model.identifiers import NodeName, PodUid, VolumeClaimKey
from policysched.model.pods import Placement, Pod, have_equal_totals


class PlacementState(Enum):
    UNKNOWN = "unknown"
    ASSUMED = "assumed"
    PREBOUND = "prebound"
    BOUND = "bound"


class PlacementListener(Protocol):
    """Called in the step that changes a placement, by any scheduler."""

    def pod_placed(self, pod: Pod) -> None: ...
    def pod_removed(self, pod: Pod) -> None: ...
    def pod_changed(self, before: Pod, after: Pod) -> None:
        """It is still placed: with other labels, of another size, or on another node."""


class Ledger:
    """Placements and the totals of each node, including placements that are not confirmed yet.

        unknown ──assume──► assumed ──mark_prebound──► prebound ──confirm──► bound ──remove──► unknown
                               └──────────withdraw────────┴───────────────────────────────────┘

    `confirm` also accepts a pod that is only assumed (most need no PreBind), was never assumed
    (another scheduler bound it), is bound already (a relist shows it again, perhaps resized), or
    was assumed on another node: the API server decides where a pod is.
    """

    def __init__(self) -> None:
        self._placements: dict[PodUid, Placement] = {}
        self._states: dict[PodUid, PlacementState] = {}
        self._usage: dict[NodeName, NodeUsage] = {}
        self._priorities: dict[int, int] = {}  # number of placed pods by priority
        self.shares = NamespaceShares()
        self.listeners: list[PlacementListener] = []
        self._claims: dict[VolumeClaimKey, int] = {}  # number of volumes of placed pods by claim

    def assume(self, pod: Pod, node: NodeName) -> None:
        """Count the pod on the node. It must not be placed yet."""
        state = self.state(pod.uid)
        assert state is PlacementState.UNKNOWN, (
            f"{pod.full_name} ({pod.uid}) is {state.value}, cannot be assumed"
        )
        self._put_placement(Placement(pod, node), PlacementState.ASSUMED)

    def mark_prebound(self, uid: PodUid) -> None:
        """PreBind is done: the volumes and claims of the pod are written."""
        state = self.state(uid)
        assert state is PlacementState.ASSUMED, f"pod {uid} is {state.value}, cannot be marked as prebound"
        self._states[uid] = PlacementState.PREBOUND

    def confirm(self, pod: Pod, node: NodeName) -> None:
        """The API server reports the pod on the node."""
        placement = Placement(pod, node)
        current = self._placements.get(pod.uid)
        if current == placement:
            self._states[pod.uid] = PlacementState.BOUND
            return
        if current is not None and current.node == node and have_equal_totals(current.pod, pod):
            self._usage[node].pods[pod.uid] = pod
            self._placements[pod.uid], self._states[pod.uid] = placement, PlacementState.BOUND
        elif current is not None:
            self._subtract(pod.uid)
            self._add(placement, PlacementState.BOUND)
        else:
            self._put_placement(placement, PlacementState.BOUND)
            return
        for listener in self.listeners:
            listener.pod_changed(current.pod, pod)

    def withdraw(self, uid: PodUid) -> Placement:
        """Remove a placement that was not confirmed, and return it."""
        state = self.state(uid)
        assert state in (PlacementState.ASSUMED, PlacementState.PREBOUND), f"pod {uid} is {state.value}"
        return self._remove_placement(uid)

    def remove(self, uid: PodUid) -> Placement | None:
        """Remove a pod that was deleted or has finished, and return its placement, if any."""
        return self._remove_placement(uid) if uid in self._placements else None

    def state(self, uid: PodUid) -> PlacementState:
        return self._states.get(uid, PlacementState.UNKNOWN)

    def placement(self, uid: PodUid) -> Placement | None:
        return self._placements.get(uid)

    def usage(self, node: NodeName) -> NodeUsage:
        """The totals of the node, read only; empty if no pod is placed there."""
        return self._usage.get(node) or NodeUsage()

    @property
    def nodes(self) -> Iterable[NodeName]:
        """Nodes with placed pods, including nodes that were not observed."""
        return self._usage

    @property
    def lowest_priority(self) -> int | None:
        """The lowest priority of a placed pod; None if no pod is placed."""
        return min(self._priorities, default=None)

    def claim_uses(self, claim: VolumeClaimKey) -> int:
        """The number of volumes of placed pods that use this claim."""
        return self._claims.get(claim, 0)

    @property
    def placements(self) -> Iterable[Placement]:
        """All placements, in the order in which they were made."""
        return self._placements.values()

    @property
    def unconfirmed(self) -> list[Placement]:
        """Assumed and prebound placements."""
        return [
            self._placements[uid] for uid, state in self._states.items() if state is not PlacementState.BOUND
        ]

    def check(self) -> list[str]:
        """Recount all totals from the placements. Returns one message per difference."""
        fresh: dict[NodeName, NodeUsage] = {}
        for placement in self._placements.values():
            fresh.setdefault(placement.node, NodeUsage()).add(placement.pod)
        differences = []
        if self._placements.keys() != self._states.keys():
            differences.append(
                f"placements and states have different pods: {self._placements.keys() ^ self._states.keys()}"
            )
        priorities = Counter(placement.pod.priority for placement in self._placements.values())
        if priorities != self._priorities:
            differences.append(f"ledger priorities: kept {self._priorities}, recounted {dict(priorities)}")
        requested: dict[str, Amounts] = {}
        for pod in (placement.pod for placement in self._placements.values()):
            add_pod(requested.setdefault(pod.namespace, {}), pod.requests, 1)
        if requested != self.shares.requested:
            differences.append(f"namespace requests: kept {self.shares.requested}, recounted {requested}")
        claims = Counter(use.claim for placement in self._placements.values() for use in placement.pod.claims)
        if claims != self._claims:
            differences.append(f"ledger claims: kept {self._claims}, recounted {dict(claims)}")
        for node in sorted(fresh.keys() | self._usage.keys()):
            usage, counted = self._usage.get(node, NodeUsage()), fresh.get(node, NodeUsage())
            if usage.nonzero() != counted.nonzero():
                differences.append(
                    f"node {node}: ledger has {usage.nonzero()}, recounted {counted.nonzero()}"
                )
        return differences

    def _put_placement(self, placement: Placement, state: PlacementState) -> None:
        self._add(placement, state)
        for listener in self.listeners:
            listener.pod_placed(placement.pod)

    def _add(self, placement: Placement, state: PlacementState) -> None:
        self._usage.setdefault(placement.node, NodeUsage()).add(placement.pod)
        self.shares.adjust_requested(placement.pod.namespace, placement.pod.requests, 1)
        priority = placement.pod.priority
        self._priorities[priority] = self._priorities.get(priority, 0) + 1
        for use in placement.pod.claims:
            self._claims[use.claim] = self._claims.get(use.claim, 0) + 1
        self._placements[placement.pod.uid] = placement
        self._states[placement.pod.uid] = state

    def _remove_placement(self, uid: PodUid) -> Placement:
        placement = self._subtract(uid)
        for listener in self.listeners:
            listener.pod_removed(placement.pod)
        return placement

    def _subtract(self, uid: PodUid) -> Placement:
        placement = self._placements.pop(uid)
        del self._states[uid]
        priority = placement.pod.priority
        self.shares.adjust_requested(placement.pod.namespace, placement.pod.requests, -1)
        self._priorities[priority] -= 1
        if not self._priorities[priority]:
            del self._priorities[priority]
        for use in placement.pod.claims:
            self._claims[use.claim] -= 1
            if not self._claims[use.claim]:
                del self._claims[use.claim]
        usage = self._usage[placement.node]
        usage.subtract(placement.pod)
        if not usage.pods:
            del self._usage[placement.node]
        return placement
