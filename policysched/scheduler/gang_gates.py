"""Gates of gangs in mode `gate`: members enter the queue themselves once the gang is complete, and leave it when it is not.

Those of a large gang in slices. No member is attempted until all have entered or left: when its turn comes, a slice of the
others is moved instead. Until all have, the gang itself is gated.
"""

from collections.abc import Iterable
from itertools import takewhile

from policysched.model.identifiers import PodUid
from policysched.scheduler.blame import change_id, raises_for
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.queue.entries import PendingPod, QueueEntry, QueueState
from policysched.scheduler.queue.gang_registry import GangId, QueuedGang
from policysched.scheduler.sliced_changes import SlicedChanges


class GangGates:
    """`moves`: by gang, the members that are still to enter or leave the queue."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self.moves: SlicedChanges[GangId, PodUid] = SlicedChanges(
            core.queue, lambda gang_id: change_id(gang_id[1]), self._move, self._end
        )
        self._opening: dict[GangId, str] = {}  # with the event, for the counters; other moves close

    def open(self, gang: QueuedGang, now_ns: int, event: str) -> None:
        """Enqueue the members that are not in the queue. One that comes while others wait for their slice enters at once."""
        left = self.moves.left(gang.id) if gang.id in self._opening else ()
        if left:
            came = takewhile(lambda uid: uid not in left, reversed(gang.unqueued_members))
            self._enqueue(gang, list(came), now_ns)
            return
        if gang.unqueued_members or gang.state is QueueState.GATED:
            self._opening[gang.id] = event
            self.moves.begin(gang.id, gang.unqueued_members, now_ns)

    def close(self, gang: QueuedGang, now_ns: int) -> None:
        """Take the members that are in the queue out of it."""
        is_opening = self._opening.pop(gang.id, None) is not None
        has_queued = len(gang.unqueued_members) < len(gang.pending_members)
        if is_opening or (has_queued and not self.moves.left(gang.id)):
            queued = [uid for uid in gang.pending_members if uid not in gang.unqueued_members]
            self.moves.begin(gang.id, queued, now_ns)

    def opens(self, gang: QueuedGang) -> bool:
        return gang.id in self._opening

    def forget(self, gang: QueuedGang) -> None:
        """It has no pending members, or its policy is being replaced."""
        self._opening.pop(gang.id, None)
        self.moves.discard(gang.id)

    def has_reached(self, entry: QueueEntry, now_ns: int) -> bool:
        """Whether a detached entry can be attempted. Otherwise a slice of its gang is moved."""
        gang = self._core.gangs.gang_of(entry.uid) if isinstance(entry, PendingPod) else None
        if gang is None or not (left := self.moves.left(gang.id)):
            return True
        self.moves.reach(gang.id, left, now_ns)
        return False

    def _move(self, gang_id: GangId, uids: list[PodUid], now_ns: int) -> None:
        """Those that changed meanwhile are where they belong already, or gone."""
        gang = self._core.gangs.get(gang_id)
        assert gang is not None, f"gang {gang_id} is gone, and its members still move"
        if gang_id in self._opening:
            self._enqueue(gang, uids, now_ns)
            return
        for uid in uids:
            pod = gang.pending_members.get(uid)
            if pod is None or uid in gang.unqueued_members:
                continue
            with raises_for(pod.object_id):
                self._core.queue.remove(pod, now_ns)
                pod.state = QueueState.GANG_MEMBER
                gang.unqueued_members[uid] = pod
                if uid in self._core.cache.nominated and not gang.held:
                    self._core.withdraw_nomination(uid, now_ns)

    def _enqueue(self, gang: QueuedGang, uids: Iterable[PodUid], now_ns: int) -> None:
        for uid in uids:
            pod = gang.unqueued_members.pop(uid, None)
            if pod is not None:
                with raises_for(pod.object_id):
                    pod.state = QueueState.DETACHED
                    self._core.queue.enqueue(pod, now_ns, self._opening[gang.id])

    def _end(self, gang_id: GangId, now_ns: int) -> None:
        gang = self._core.gangs.get(gang_id)
        if self._opening.pop(gang_id, None) is not None and gang is not None:
            self._core.queue.remove(gang, now_ns)
