"""Nominated nodes: pods that get a node once the victims of their preemption are gone.

A nomination by this scheduler counts from the decision on. Until the watch shows the same node (or
none, if the nomination was withdrawn), the local value overrides what the watch shows.

    none ──set_nomination(node)──► unconfirmed ──put_observed, same node──► observed ──put_observed, no node──► none
      ▲                                 └──────set_nomination(None), forget──────┘
"""

from dataclasses import replace

from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_status import ObservedPod


class Nominations:
    """`by_pod` has each nominated pod with its effective `nominated_node`; read only, always the
    same dict. `version` grows with each change of it. `by_node` has the same pods by that node."""

    def __init__(self) -> None:
        self.by_pod: dict[PodUid, ObservedPod] = {}
        self.by_node: dict[NodeName, dict[PodUid, None]] = {}
        self.version = 0
        self._unconfirmed: dict[PodUid, NodeName | None] = {}

    def put_observed(self, observed: ObservedPod) -> None:
        """The API server reports this pod, which is not bound."""
        uid = observed.pod.uid
        if uid in self._unconfirmed:
            if self._unconfirmed[uid] == observed.nominated_node:
                del self._unconfirmed[uid]
            else:
                observed = replace(observed, nominated_node=self._unconfirmed[uid], nominated_by_other=False)
        self._put(observed)

    def set_nomination(self, observed: ObservedPod, node: NodeName | None) -> None:
        """Nominate the pod, or withdraw its nomination (None). The caller writes it to the API
        server."""
        if observed.nominated_node == node:
            self._unconfirmed.pop(observed.pod.uid, None)
        else:
            self._unconfirmed[observed.pod.uid] = node
        self._put(replace(observed, nominated_node=node, nominated_by_other=False))

    def forget(self, uid: PodUid) -> None:
        """The pod is bound, finished or deleted."""
        self._remove(uid)
        self._unconfirmed.pop(uid, None)

    def nominated_node(self, uid: PodUid) -> NodeName | None:
        observed = self.by_pod.get(uid)
        return None if observed is None else observed.nominated_node

    def _put(self, observed: ObservedPod) -> None:
        uid, node = observed.pod.uid, observed.nominated_node
        if node is None:
            self._remove(uid)
            return
        if node != self.nominated_node(uid):
            self._unindex(uid)
            self.by_node.setdefault(node, {})[uid] = None
        self.by_pod[uid] = observed
        self.version += 1

    def _remove(self, uid: PodUid) -> None:
        self._unindex(uid)
        if self.by_pod.pop(uid, None) is not None:
            self.version += 1

    def _unindex(self, uid: PodUid) -> None:
        node = self.nominated_node(uid)
        if node is not None:
            del self.by_node[node][uid]
            if not self.by_node[node]:
                del self.by_node[node]
