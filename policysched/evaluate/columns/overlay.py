"""A cluster that is not: the columns with some pods laid on nodes and some lifted off.

A gang is tried, an eviction thought through, on an overlay; only the touched nodes get totals of their own. It lives
within one decision: the caller commits it by assuming each placement in the cache, or forgets it.
"""

from collections import Counter
from collections.abc import Callable

from policysched.cluster.devices.allocation_cache import DeviceOverlay
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.cluster.shares import HypotheticalShares, NamespaceShares
from policysched.cluster.usage import NodeUsage
from policysched.cluster.volumes.reservations import VolumeChoice, VolumeReservations
from policysched.evaluate.columns.columns import Columns
from policysched.evaluate.columns.placed_pods import HypotheticalPlacedPods
from policysched.model.identifiers import NodeName, PodUid, VolumeClaimKey
from policysched.model.pods import Placement, Pod


class Overlay:
    """Totals of the touched rows. `log` lists touched rows in order, so that kept results can catch up; `added_pods` the pods
    that were laid, in order, and `removal_count` counts how often one of them was taken from it again. `claim_use_deltas` says how many more
    or fewer volumes of pods are a claim, `volume_reservations` which volumes pods on it were given, `device_reservations` which devices."""

    def __init__(
        self, columns: Columns, placement_of: Callable[[PodUid], Placement | None], shares: NamespaceShares
    ) -> None:
        self._columns = columns
        self.shares = HypotheticalShares(shares)
        self._placement_of = placement_of
        self._usages: dict[int, NodeUsage] = {}
        self._change_counts: dict[int, int] = {}  # how many pods of each row are laid or lifted
        self._added: dict[PodUid, tuple[Pod, NodeName]] = {}
        self.added_pods: list[tuple[Pod, NodeName]] = []
        self.removal_count = 0
        self._removed: set[PodUid] = set()
        self.log: list[int] = []
        self.claim_use_deltas: Counter[VolumeClaimKey] = Counter()
        self.volume_reservations = VolumeReservations()
        self.device_reservations = DeviceOverlay()
        self.pods = HypotheticalPlacedPods(lambda: columns.placed_pods)

    def add_pod(self, pod: Pod, node: NodeName) -> None:
        """As if the pod were on the node. It must be on none (a lifted pod may be laid elsewhere)."""
        assert pod.uid not in self._added, f"{pod.full_name} is laid on {self._added[pod.uid][1]} already"
        assert self._placement_of(pod.uid) is None or pod.uid in self._removed, f"{pod.full_name} is placed"
        self._update_usage(node, pod, 1).add(pod)
        self._count_change(node, 1)
        self._added[pod.uid] = (pod, node)
        self.added_pods.append((pod, node))

    def remove_pod(self, uid: PodUid) -> None:
        """As if the pod were gone: one that was laid here, or one that the ledger has placed."""
        laid = self._added.pop(uid, None)
        if laid is not None:
            self._update_usage(laid[1], laid[0], -1).subtract(laid[0])
            self._count_change(laid[1], -1)
            self.added_pods.remove(laid)
            self.removal_count += 1
            return
        placement = self._placement_of(uid)
        assert placement is not None and uid not in self._removed, f"pod {uid} is on no node"
        self._update_usage(placement.node, placement.pod, -1).subtract(placement.pod)
        self._count_change(placement.node, 1)
        self._removed.add(uid)

    def restore_pod(self, uid: PodUid) -> None:
        """A pod that was lifted off its node is there again."""
        placement = self._placement_of(uid)
        assert placement is not None and uid in self._removed, f"pod {uid} was not lifted"
        self._update_usage(placement.node, placement.pod, 1).add(placement.pod)
        self._count_change(placement.node, -1)
        self._removed.remove(uid)

    def has_added_pod(self, uid: PodUid) -> bool:
        """Whether the pod was laid here and not lifted again."""
        return uid in self._added

    def reserve_volumes(self, uid: PodUid, choice: VolumeChoice, node: NodeName) -> None:
        """As if the volumes were given to the pod: nobody else on the overlay gets them."""
        self.volume_reservations.add(uid, choice, node)

    def reserve_devices(self, choice: DeviceChoice) -> None:
        """As if the devices were given away: nobody else on the overlay gets them."""
        before = dict(self.device_reservations.node_changes)
        self._columns.available_devices.add_to_overlay(self.device_reservations, choice)
        for name, count in self.device_reservations.node_changes.items():
            row = self._columns.row(name)
            if row is not None and count != before.get(name):
                self.log.append(row)

    @property
    def usages(self) -> dict[int, NodeUsage]:
        """Totals by row, for the rows that differ from the columns. Not to be changed."""
        return self._usages

    @property
    def removed_pods(self) -> tuple[Pod, ...]:
        """Pods that the ledger has placed, as if they were gone."""
        placements = [self._placement_of(uid) for uid in sorted(self._removed)]
        return tuple([one.pod for one in placements if one is not None])

    @property
    def placements(self) -> tuple[tuple[Pod, NodeName], ...]:
        """What was laid and not lifted again, in order: what a commit assumes."""
        return tuple(self.added_pods)

    def _update_usage(self, node: NodeName, pod: Pod, by: int) -> NodeUsage:
        row = self._columns.row(node)
        assert row is not None, f"node {node} is not known"
        self.log.append(row)
        self.pods.adjust(row, pod, by)
        self.shares.adjust_requested(pod.namespace, pod.requests, by)
        for use in pod.claims:
            self.claim_use_deltas[use.claim] += by
        usage = self._usages.get(row)
        if usage is None:
            usage = self._usages[row] = _copy_usage(self._columns.usage(row))
        return usage

    def _count_change(self, node: NodeName, by: int) -> None:
        """A row on which everybody is back is as the columns have it: whoever looks at all rows looks at few."""
        row = self._columns.row(node)
        assert row is not None, f"node {node} is not known"
        count = self._change_counts.get(row, 0) + by
        if count:
            self._change_counts[row] = count
        else:
            del self._change_counts[row]
            del self._usages[row]


def _copy_usage(usage: NodeUsage) -> NodeUsage:
    return NodeUsage(
        dict(usage.requested),
        usage.scoring_cpu_milli,
        usage.scoring_memory_bytes,
        dict(usage.ports),
        dict(usage.pods),
    )
