"""Which member of a gang is next to another one by rank, and where it runs.

The rank is the index of a pod in an indexed Job or a StatefulSet. Neighbours in rank talk to each other most in ring and
tree algorithms, so they are placed near each other.
"""

from bisect import bisect_left, insort

from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.queue.gang_registry import QueuedGang

JOB_INDEX = "batch.kubernetes.io/job-completion-index"
"""Set by the Job controller as an annotation, and since 1.28 as a label too."""
STATEFUL_SET_INDEX = "apps.kubernetes.io/pod-index"


def rank_of(pod: Pod) -> int | None:
    """None: the pod has no rank."""
    text = (
        pod.annotations.get(JOB_INDEX)
        or pod.labels.get(JOB_INDEX)
        or pod.labels.get(STATEFUL_SET_INDEX)
        or ""
    )
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


class Neighbours:
    """The members that have a node: those that are placed, and those that `add` adds during a search."""

    def __init__(self, core: SchedulerCore, gang: QueuedGang) -> None:
        self._core = core
        self._by_rank: list[tuple[int, NodeName]] = []
        self._latest: NodeName | None = None
        for uid in gang.placed_members:
            placement = core.cache.ledger.placement(uid)
            if placement is not None:
                self.add(placement.pod, placement.node)

    def add(self, pod: Pod, node: NodeName) -> None:
        self._latest = node
        rank = rank_of(pod)
        if rank is not None:
            insort(self._by_rank, (rank, node))

    def nearest_node(self, pod: Pod) -> Node | None:
        """The node of the member with the nearest rank, the lower of two; without ranks that of the latest member. None:
        no member has a node."""
        rank, node = rank_of(pod), self._latest
        if rank is not None and self._by_rank:
            index = bisect_left(self._by_rank, (rank, NodeName("")))
            around = self._by_rank[max(0, index - 1) : index + 1]
            node = min(around, key=lambda member: (abs(member[0] - rank), member[0]))[1]
        return None if node is None else self._core.cache.nodes.get(node)
