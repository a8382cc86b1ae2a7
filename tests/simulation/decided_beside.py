"""The pods that were decided in the pauses of a gang's attempt, beside its members.

A member that had a node before such a pod came first. It is compared with the reference implementation when it is assumed,
at the end of the attempt, on a cluster without the pod.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.scheduler.gangs.gang_search_result import GangSearchResult
from policysched.scheduler.scheduler import Scheduler


class DecidedBeside:
    """`note` is called for each pod that is assumed."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._core, self._attempts = scheduler._core, scheduler._attempts
        self._searches: list[GangSearchResult] = []  # of attempts that pause, or paused last
        self._pods: list[
            tuple[GangSearchResult, list[tuple[PodUid, NodeName]], PodUid]
        ] = []  # with the members that had a node then

    def note(self, pod: Pod) -> None:
        pauses = [each.pause for each in self._attempts._interrupted]
        pauses += [] if self._attempts._pause is None else [self._attempts._pause]
        if not pauses:
            return
        searches = [pause.search for pause in pauses]
        if not any(each is known for each in searches for known in self._searches):
            self._pods = []
        self._searches = searches
        self._pods += [(search, _placed(search), pod.uid) for search in searches]

    @contextmanager
    def left_out_for(self, member: Pod, node: NodeName) -> Iterator[None]:
        """The ledger and the assumed loads without the pods that were decided after the member had its node. No listener
        is told, and everything is put back."""
        uids = self._decided_after(member, node)
        if not uids:
            yield
            return
        ledger, tracker = self._core.cache.ledger, self._core.samples.assumed_load
        listeners, ledger.listeners = ledger.listeners, []
        removed = [(ledger.placement(uid), ledger.state(uid)) for uid in uids]
        kept = [
            (
                load,
                dict(load.pods),
                {name: dict(pods) for name, pods in load.by_node.items()},
                dict(load.totals),
            )
            for load in tracker._all_loads()
        ]
        for uid in uids:
            ledger.remove(uid)
            tracker.pod_removed(uid)
        yield
        for placement, state in removed:
            assert placement is not None, "only placed pods are left out"
            ledger._put_placement(placement, state)
        for load, pods, by_node, totals in kept:
            load.pods, load.by_node = pods, by_node
            load.totals.clear()  # samples share the object
            load.totals.update(totals)
        ledger.listeners = listeners

    def _decided_after(self, member: Pod, node: NodeName) -> Sequence[PodUid]:
        decided = []
        for search, before, uid in self._pods:
            placed = _placed(search)
            if (member.uid, node) in placed and self._core.cache.ledger.placement(uid) is not None:
                # none of the first ones has given its node back since
                first = placed[: placed.index((member.uid, node)) + 1]
                decided += [uid] if before[: len(first)] == first else []
        return decided


def _placed(search: GangSearchResult) -> list[tuple[PodUid, NodeName]]:
    return [(pod.uid, success.node) for pod, success in search.fits]
