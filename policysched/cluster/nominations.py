"""Who is to have which node once the pods there are gone: nominations, ours and those that the API server shows.

A nomination of ours counts from the moment we decide it; the watch shows it later, and what it shows of the pod before
that is old news. So a promise (a node, or none where we took one back) stands until the server says the same.

    none ──promise(node)──► promised ──the server shows it──► shown ──the server shows none──► none
      ▲                         └──────promise(None), forget──────┘
"""

from dataclasses import replace

from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_status import ObservedPod


class Nominations:
    """`by_pod` has each nominated pod, with the node that it is nominated to; read only, and always the same dict."""

    def __init__(self) -> None:
        self.by_pod: dict[PodUid, ObservedPod] = {}
        self._unconfirmed: dict[PodUid, NodeName | None] = {}

    def put_observed(self, observed: ObservedPod) -> None:
        """The API server shows this pod, which is on no node."""
        uid = observed.pod.uid
        if uid in self._unconfirmed:
            if self._unconfirmed[uid] == observed.nominated_node:
                del self._unconfirmed[uid]
            else:
                observed = replace(observed, nominated_node=self._unconfirmed[uid])
        self._put(observed)

    def set_nomination(self, observed: ObservedPod, node: NodeName | None) -> None:
        """We nominate the pod, or take its nomination back (None), and are about to say so to the API server."""
        if observed.nominated_node == node:
            self._unconfirmed.pop(observed.pod.uid, None)
        else:
            self._unconfirmed[observed.pod.uid] = node
        self._put(replace(observed, nominated_node=node))

    def forget(self, uid: PodUid) -> None:
        """The pod is on a node, finished or gone."""
        self.by_pod.pop(uid, None)
        self._unconfirmed.pop(uid, None)

    def nominated_node(self, uid: PodUid) -> NodeName | None:
        observed = self.by_pod.get(uid)
        return None if observed is None else observed.nominated_node

    def _put(self, observed: ObservedPod) -> None:
        if observed.nominated_node is None:
            self.by_pod.pop(observed.pod.uid, None)
        else:
            self.by_pod[observed.pod.uid] = observed
