"""A cluster that is not: the columns with some pods laid on nodes and some lifted off.

A gang is tried, an eviction thought through, on an overlay; only the touched nodes get totals of their own. It lives
within one decision: the caller commits it by assuming each placement in the cache, or forgets it.
"""

from collections import Counter
from collections.abc import Callable

from policysched.cluster.devices.finder import LaidDevices
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.cluster.shares import HypotheticalShares, Shares
from policysched.cluster.usage import Usage
from policysched.cluster.volumes.reservations import Promises, VolumeChoice
from policysched.evaluate.columns.columns import Columns
from policysched.evaluate.columns.placed_pods import HypotheticalPods
from policysched.model.objects import ClaimKey, NodeName, Placement, Pod, PodUid


class Overlay:
    """Totals of the touched rows. `log` lists touched rows in order, so that kept results can catch up; `laid` the pods
    that were laid, in order, and `lifts` counts how often one of them was taken from it again. `claims` says how many more
    or fewer volumes of pods are a claim, `promises` which volumes pods on it were given, `devices` which devices."""

    def __init__(
        self, columns: Columns, placement_of: Callable[[PodUid], Placement | None], shares: Shares
    ) -> None:
        self._columns = columns
        self.shares = HypotheticalShares(shares)
        self._placement_of = placement_of
        self._usages: dict[int, Usage] = {}
        self._differences: dict[int, int] = {}  # how many pods of each row are laid or lifted
        self._laid: dict[PodUid, tuple[Pod, NodeName]] = {}
        self.laid: list[tuple[Pod, NodeName]] = []
        self.lifts = 0
        self._lifted: set[PodUid] = set()
        self.log: list[int] = []
        self.claims: Counter[ClaimKey] = Counter()
        self.promises = Promises()
        self.devices = LaidDevices()
        self.pods = HypotheticalPods(lambda: columns.placed)

    def place(self, pod: Pod, node: NodeName) -> None:
        """As if the pod were on the node. It must be on none (a lifted pod may be laid elsewhere)."""
        assert pod.uid not in self._laid, f"{pod.full_name} is laid on {self._laid[pod.uid][1]} already"
        assert self._placement_of(pod.uid) is None or pod.uid in self._lifted, f"{pod.full_name} is placed"
        self._own(node, pod, 1).add(pod)
        self._differ(node, 1)
        self._laid[pod.uid] = (pod, node)
        self.laid.append((pod, node))

    def remove(self, uid: PodUid) -> None:
        """As if the pod were gone: one that was laid here, or one that the ledger has placed."""
        laid = self._laid.pop(uid, None)
        if laid is not None:
            self._own(laid[1], laid[0], -1).subtract(laid[0])
            self._differ(laid[1], -1)
            self.laid.remove(laid)
            self.lifts += 1
            return
        placement = self._placement_of(uid)
        assert placement is not None and uid not in self._lifted, f"pod {uid} is on no node"
        self._own(placement.node, placement.pod, -1).subtract(placement.pod)
        self._differ(placement.node, 1)
        self._lifted.add(uid)

    def put_back(self, uid: PodUid) -> None:
        """A pod that was lifted off its node is there again."""
        placement = self._placement_of(uid)
        assert placement is not None and uid in self._lifted, f"pod {uid} was not lifted"
        self._own(placement.node, placement.pod, 1).add(placement.pod)
        self._differ(placement.node, -1)
        self._lifted.remove(uid)

    def has_laid(self, uid: PodUid) -> bool:
        """Whether the pod was laid here and not lifted again."""
        return uid in self._laid

    def promise(self, uid: PodUid, choice: VolumeChoice, node: NodeName) -> None:
        """As if the volumes were given to the pod: nobody else on the overlay gets them."""
        self.promises.add(uid, choice, node)

    def promise_devices(self, choice: DeviceChoice) -> None:
        """As if the devices were given away: nobody else on the overlay gets them."""
        before = dict(self.devices.nodes)
        self._columns.devices.lay(self.devices, choice)
        for name, count in self.devices.nodes.items():
            row = self._columns.row(name)
            if row is not None and count != before.get(name):
                self.log.append(row)

    @property
    def usages(self) -> dict[int, Usage]:
        """Totals by row, for the rows that differ from the columns. Not to be changed."""
        return self._usages

    @property
    def lifted(self) -> tuple[Pod, ...]:
        """Pods that the ledger has placed, as if they were gone."""
        placements = [self._placement_of(uid) for uid in sorted(self._lifted)]
        return tuple([one.pod for one in placements if one is not None])

    @property
    def placed(self) -> tuple[tuple[Pod, NodeName], ...]:
        """What was laid and not lifted again, in order: what a commit assumes."""
        return tuple(self.laid)

    def _own(self, node: NodeName, pod: Pod, by: int) -> Usage:
        row = self._columns.row(node)
        assert row is not None, f"node {node} is not known"
        self.log.append(row)
        self.pods.shift(row, pod, by)
        self.shares.hold(pod.namespace, pod.requests, by)
        for use in pod.claims:
            self.claims[use.claim] += by
        usage = self._usages.get(row)
        if usage is None:
            usage = self._usages[row] = _copied(self._columns.usage(row))
        return usage

    def _differ(self, node: NodeName, by: int) -> None:
        """A row on which everybody is back is as the columns have it: whoever looks at all rows looks at few."""
        row = self._columns.row(node)
        assert row is not None, f"node {node} is not known"
        count = self._differences.get(row, 0) + by
        if count:
            self._differences[row] = count
        else:
            del self._differences[row]
            del self._usages[row]


def _copied(usage: Usage) -> Usage:
    return Usage(
        dict(usage.requested),
        usage.scoring_cpu_milli,
        usage.scoring_memory_bytes,
        dict(usage.ports),
        dict(usage.pods),
    )
