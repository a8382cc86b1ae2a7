"""`PlacedPodCounts`: the pods of each row as last counted, and the counts of them, which are updated as rows are refreshed.

`PlacedPods` is built from all placed pods, which may have very many terms. It is built row by row, in steps before the first
decision, so that no decision waits for all of it. Meanwhile, changes of rows that were not read yet are skipped: these rows
are read later. Reading `placed` before the last step builds the rest at once.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from policysched.cluster.cache import ClusterCache
from policysched.evaluate.columns.gang_members import GangMembers, GangMemberSpec
from policysched.evaluate.columns.not_counted import NotCounted
from policysched.evaluate.columns.placed_pod_totals import PlacedPodTotals
from policysched.evaluate.columns.placed_pods import PlacedPods
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.nodes import Node
from policysched.model.pods import Pod

ITEMS_PER_STEP = 256
"""Pods and their terms: two or three milliseconds. A pod is not divided."""
_GANG_MEMBERS_MAX = 64  # distinct gang declarations: mostly one per policy

_EVERY_ROW = sys.maxsize
_NO_PODS: Mapping[PodUid, Pod] = {}


@dataclass(slots=True)
class _PlacedInPreparation:
    """Counted so far: the pods of the rows before `row`, and in this row the pods `of_row`."""

    placed: PlacedPods
    row: int = 0
    of_row: dict[PodUid, Pod] = field(default_factory=dict)
    steps: Iterator[None] = field(init=False)

    def has_counted(self, row: int, pod: Pod, delta: int) -> bool:
        """Whether to apply a change of the row now; otherwise it is read with the row. Forgets a removed pod."""
        if row == self.row and delta < 0:
            return self.of_row.pop(pod.uid, None) is not None
        return row < self.row


class PlacedPodCounts:
    """`adjusted` counts the pods and terms that were added or removed; `updating`: the pod that is being added or removed."""

    def __init__(
        self,
        cache: ClusterCache,
        names: Sequence[NodeName],
        nodes: Sequence[Node | None],
        topology_keys: Collection[str],
    ) -> None:
        """`names`, `nodes`: by row; `topology_keys`: the label keys that some node has. All change with the cluster."""
        self.totals = PlacedPodTotals(self.by_row, nodes)
        self.is_awaited = False
        """Whether decisions wait until the placed pods are counted."""
        self.updating: Pod | None = None
        self.adjusted = 0
        self._cache = cache
        self._names = names
        self._nodes = nodes
        self._topology_keys = topology_keys
        self._capacity = 0
        self._by_row: dict[int, Mapping[PodUid, Pod]] = {}
        self._listed_rows = 0  # the rows before it are in `_by_row`: none before the first use
        self._placed: PlacedPods | None = None
        self._preparation: _PlacedInPreparation | None = None
        self._gang_members: OrderedDict[GangMemberSpec, GangMembers] = OrderedDict()

    # ── queries ────────────────────────────────────────────────────────────────────────────────────────────────────

    def by_row(self) -> Mapping[int, Mapping[PodUid, Pod]]:
        self._list_rows(len(self._nodes))
        self._listed_rows = _EVERY_ROW
        return self._by_row

    @property
    def placed(self) -> PlacedPods:
        if self._placed is None:
            while self.count_slice():
                pass
        assert self._placed is not None, "the placed pods are not counted"
        return self._placed

    @property
    def are_missing(self) -> bool:
        """Whether decisions wait for the next `count_slice`."""
        return self.is_awaited and self._placed is None

    def selected_label_values(self, pod: Pod) -> tuple[object, ...]:
        """See `PlacedPods`; empty while placed pods are not counted."""
        return () if self._placed is None else self._placed.selected_label_values(pod)

    def gang_members(self, spec: GangMemberSpec) -> GangMembers:
        members = self._gang_members.pop(spec, None)  # missing if it cannot be counted
        if members is None:
            members = GangMembers(spec, self._cache.namespaces)
            self._count_members(members, lambda _: True)
        elif changed := members.forget_changed_namespaces():
            self._count_members(members, changed.__contains__)
        self._gang_members[spec] = members
        if len(self._gang_members) > _GANG_MEMBERS_MAX:
            self._gang_members.popitem(last=False)
        return members

    def _count_members(self, members: GangMembers, of_namespace: Callable[[str], bool]) -> None:
        for row, pods in self.by_row().items():
            for pod in pods.values():
                if of_namespace(pod.namespace):
                    self._count(members, row, pod)

    # ── the first count ────────────────────────────────────────────────────────────────────────────────────────────

    def count_slice(self) -> bool:
        """Count some more of the placed pods. Returns whether some are left. The cluster may change between two calls."""
        if self._placed is not None:
            return False
        preparation = self._preparation
        if preparation is None:
            placed = PlacedPods(self._cache.namespaces, self._capacity, self._topology_keys)
            preparation = self._preparation = _PlacedInPreparation(placed)
            preparation.steps = self._count_in_steps(preparation)
        try:
            for _ in preparation.steps:
                return True
        except NotCounted:
            self._preparation = None  # start again, or the pod would be missing
            raise
        self._placed, self._preparation = preparation.placed, None
        return False

    def _count_in_steps(self, preparation: _PlacedInPreparation) -> Iterator[None]:
        items = 0
        while preparation.row < len(self._nodes):
            row, counted = preparation.row, preparation.of_row
            self._list_rows(row + 1)
            for pod in [pod for uid, pod in self._by_row.get(row, _NO_PODS).items() if uid not in counted]:
                if items >= ITEMS_PER_STEP:
                    items = 0
                    yield
                    break  # the row may have changed
                self._count(preparation.placed, row, pod)
                counted[pod.uid] = pod
                items += _items(pod)
            else:
                preparation.row += 1
                counted.clear()
        self.by_row()

    def _count(self, counts: PlacedPods | GangMembers, row: int, pod: Pod) -> None:
        try:
            counts.adjust(row, pod, 1)
        except Exception as error:
            raise NotCounted(self._names[row], pod) from error

    def _list_rows(self, count: int) -> None:
        for row in range(self._listed_rows, count):
            if self._nodes[row] is not None and (on_row := self._cache.ledger.usage(self._names[row]).pods):
                self._by_row[row] = dict(on_row)
        self._listed_rows = max(self._listed_rows, count)

    # ── changes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def update_row(self, row: int, pods: Mapping[PodUid, Pod]) -> None:
        """Apply the difference between the row's pods and those last counted."""
        if row >= self._listed_rows:
            return
        before = self._by_row.get(row, _NO_PODS)
        for uid, pod in before.items():
            if pods.get(uid) is not pod:
                self._adjust(row, pod, -1)
        for uid, pod in pods.items():
            if before.get(uid) is not pod:
                self._adjust(row, pod, 1)
        if pods:
            self._by_row[row] = dict(pods)
        else:
            self._by_row.pop(row, None)

    def _adjust(self, row: int, pod: Pod, delta: int) -> None:
        self.updating = pod
        self.adjusted += _items(pod)
        if self._placed is not None:
            self._placed.adjust(row, pod, delta)
        elif self._preparation is not None and self._preparation.has_counted(row, pod, delta):
            self._preparation.placed.adjust(row, pod, delta)
        for members in self._gang_members.values():
            members.adjust(row, pod, delta)
        self.totals.adjust(row, pod, delta)

    def relabel(self, row: int, before: Node, after: Node) -> None:
        """Count the pods of a row by the new labels of its node."""
        if row < self._listed_rows:
            self.totals.relabel(row, self._by_row.get(row, _NO_PODS).values(), before, after)

    def grow(self, capacity: int) -> None:
        self._capacity = capacity
        if (placed := self._placed_so_far) is not None:
            placed.capacity = capacity

    def topology_keys_appeared(self, keys: Collection[str]) -> None:
        if (placed := self._placed_so_far) is not None:
            placed.topology_keys_appeared(keys)

    def namespaces_changed(self) -> None:
        for members in self._gang_members.values():
            members.is_outdated = True
        if (placed := self._placed_so_far) is not None:
            placed.namespaces_changed()

    def evict_unused(self) -> None:
        if (placed := self._placed_so_far) is not None:
            placed.evict_unused()

    @property
    def _placed_so_far(self) -> PlacedPods | None:
        return self._placed if self._preparation is None else self._preparation.placed


def _items(pod: Pod) -> int:
    affinity = pod.pod_affinity
    if affinity is None:
        return 1
    return 1 + len(affinity.required) + len(affinity.required_anti) + len(affinity.preferred)
